"""The whole site is built without a warning, with all links leading somewhere, and nothing from other machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.docs import build

pytest.importorskip("mkdocs", reason="the site is built with the extra 'docs'")
pytest.importorskip("material", reason="the site is built with the extra 'docs'")


@pytest.mark.long
def test_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(build, "SITE", tmp_path / "site")
    assert build.main() == 0
    assert "all links lead somewhere" in capsys.readouterr().out
    layer = tmp_path / "site" / "reference" / "layers" / "math" / "conv.html"
    assert "<table>" in layer.read_text(encoding="utf8") and layer.with_suffix(".svg").exists()
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf8"))
    found = {entry["location"] for entry in index["docs"]}
    assert {"reference/settings/training.html#num_epochs", "reference/units/mamba.html", "data.html"} <= found
