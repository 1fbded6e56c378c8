"""The whole site is built without a warning, with all links leading somewhere, and nothing from other machines."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

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


@pytest.mark.parametrize(
    "url, link",
    [
        ("", "](data.md): "),
        (None, "](data.md): "),
        ("https://docs.example/1.2", "](https://docs.example/1.2/data.md): "),  # as mike gives it
        ("https://docs.example/", "](https://docs.example/data.md): "),
    ],
)
def test_addresses(tmp_path: Path, url: Optional[str], link: str) -> None:
    """Without an address, the site map of MkDocs has no pages; the links of llms.txt are relative then."""
    from tools.docs import hook

    maps = [tmp_path / "sitemap.xml", tmp_path / "sitemap.xml.gz"]
    for path in maps:
        path.touch()
    hook.on_post_build(SimpleNamespace(site_dir=tmp_path, site_url=url, site_name="name", site_description="What."))
    assert [path.exists() for path in maps] == [bool(url)] * 2
    assert link in (tmp_path / "llms.txt").read_text(encoding="utf8")


@pytest.mark.parametrize("version, shown", [(None, {}), ("1.2.3", {"version": {"provider": "mike"}})])
def test_list_of_versions(monkeypatch: pytest.MonkeyPatch, version: Optional[str], shown: dict[str, object]) -> None:
    """Only what mike builds has a list of versions beside it."""
    from tools.docs import hook

    monkeypatch.delenv("MIKE_DOCS_VERSION", raising=False)
    if version is not None:
        monkeypatch.setenv("MIKE_DOCS_VERSION", version)
    assert hook.on_config(SimpleNamespace(extra={})).extra == shown
