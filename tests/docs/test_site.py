"""The whole site is built without a warning, with all links leading somewhere, and nothing from other machines."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools.docs import build

pytest.importorskip("mkdocs", reason="the site is built with the extra 'docs'")
pytest.importorskip("material", reason="the site is built with the extra 'docs'")


@pytest.mark.long
def test_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(build, "SITE", tmp_path / "site")
    monkeypatch.setenv("SITE_URL", "https://docs.example/tf")
    assert build.main() == 0
    assert "all links lead somewhere" in capsys.readouterr().out
    layer = tmp_path / "site" / "reference" / "layers" / "math" / "conv.html"
    assert "<table>" in layer.read_text(encoding="utf8") and layer.with_suffix(".svg").exists()
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf8"))
    found = {entry["location"] for entry in index["docs"]}
    assert {"reference/settings/training.html#num_epochs", "reference/units/mamba.html", "data.html"} <= found
    addresses = {
        element.text for element in ElementTree.parse(tmp_path / "site" / "sitemap.xml").iter() if element.text
    }
    assert {"https://docs.example/tf/data.html", "https://docs.example/tf/reference/layers/math/conv.html"} <= addresses
    assert "](https://docs.example/tf/guide/decoding.md): " in (tmp_path / "site" / "llms.txt").read_text(
        encoding="utf8"
    )
    assert "(../data.md)" in (tmp_path / "site" / "guide" / "README.md").read_text(encoding="utf8")
