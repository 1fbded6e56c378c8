"""Links of pages lead to files and headings that are there: those of the site, and those of the repository."""

from __future__ import annotations

import functools
import posixpath
from pathlib import Path

from tools.docs.links import anchors_of, is_external, links_of, rewrite_links, slug, title_of
from tools.docs.name_links import entries_of, link_names
from tools.docs.nav import navigation, ordered
from tools.docs.pages import all_files, all_pages
from tools.docs.repository import ROOT, link_on_site, page_of, repository_path
from tools.docs.site_check import mistakes_of


def test_links_lead_somewhere() -> None:
    """Those of all pages, the made ones included; `make docs` looks at the built ones."""
    broken = [
        "%s: %s" % (repository_path(name), link)
        for name, page in all_pages().items()
        for link in links_of(page)
        if not is_external(link) and not _leads_somewhere(name, link)
    ]
    assert len(all_pages()) > 300 and broken == []


def _leads_somewhere(name: str, link: str) -> bool:
    target, _, anchor = link_on_site(name, link).partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if target else name
    if path not in all_pages():
        return path in all_files() or (ROOT / "docs" / path).is_file()
    return not anchor or anchor in _anchors(path)


@functools.cache
def _anchors(path: str) -> set[str]:
    return anchors_of(all_pages()[path])


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, dict):
            return [name for value in entry.values() for name in pages(value)]
        return [name for value in entry for name in pages(value)] if isinstance(entry, list) else [str(entry)]

    shown = pages(navigation(all_pages()))
    assert len(shown) == len(set(shown))
    left_out = {name for name in all_pages() if name.startswith("source/") or name.endswith(".config.md")}
    assert all_pages().keys() - left_out <= set(shown) <= all_pages().keys()
    tabs = {title: entry for part in navigation(all_pages()) for title, entry in part.items()}
    assert {"data.md", "training-on-clusters.md"} <= set(pages(tabs["Guide"])) - set(pages(tabs["Topics"]))
    assert pages(tabs["Guide"])[:3] == ["guide/README.md", "guide/first-config.md", "data.md"]
    assert "cookbook/ctc.md" in shown and "cookbook/ctc.config.md" not in shown


def test_pages_stand_in_the_order_of_their_index() -> None:
    pages = {"g/README.md": "[c](c.md#x) [d](d/README.md) [a](a.md)", "g/a.md": "", "g/b.md": "", "g/c.md": ""}
    pages.update({"g/d/README.md": "# D", "g/d/x.md": "# X", "h.md": ""})
    assert ordered(pages, "g") == ["g/README.md", "g/c.md", "g/d/", "g/a.md", "g/b.md"]
    assert ordered(pages, "") == ["g/", "h.md"]


def test_files_of_the_repository_become_pages() -> None:
    assert page_of("README.md", "../README.md#x") == "source/README.md"
    assert page_of("develop/extending.md", "../../demos/12ax/12ax.config") == "source/demos/12ax/12ax.config.md"
    assert page_of("README.md", "data.md") == "data.md" == page_of("source/README.md", "docs/data.md")
    assert page_of("README.md", "../nothing.md") is None and page_of("README.md", "https://x.org") is None
    assert page_of("README.md", "guide/") == "guide/README.md" and page_of("README.md", "#x") is None
    assert page_of("README.md", "assets/site.css") == "assets/site.css.md"
    assert repository_path("assets/site.css.md") == "docs/assets/site.css"
    assert link_on_site("source/README.md", "docs/data.md#making") == "../data.md#making"
    assert link_on_site("develop/extending.md", "../../native_ops/README.md") == "../source/native_ops/README.md"


def test_links_in_code_are_none() -> None:
    page = "[a](a.md) `[b](b.md)`\n\n```python\n[c](c.md)\n```\n\n[d](d.md#e)"
    assert links_of(page) == ["a.md", "d.md#e"]
    assert rewrite_links(page, str.upper) == page.replace("a.md", "A.MD").replace("d.md#e", "D.MD#E")


def test_anchors() -> None:
    page = "# The `x` of [y](z.md)\n\n```\n# no\n```\n\n## A, b\n\n## A b\n\n### C {#d.e}\n"
    assert anchors_of(page) == {"the-x-of-y", "a-b", "a-b_1", "d.e"}
    assert slug("`behavior_version` 1: x") == "behavior_version-1-x" and title_of(page, "") == "The x of y"


def test_mistakes_of_a_built_site(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text('<h1 id="x">X</h1><a href="../b.html#y">b</a>')
    (tmp_path / "b.html").write_text(
        '<a href="a/#x">good</a><a href="a/#z">no</a><a href="c.html">no</a><a href="https://x.org">good</a>'
        "<h2><code>x</code> {#y}</h2><p><code>{#x}</code> [1](2)</p>"
        '<script src="https://x.org/s.js"></script><link rel="canonical" href="https://x.org">'
    )
    assert mistakes_of(tmp_path) == [
        "a/index.html: no anchor for the link ../b.html#y",
        "b.html: Markdown is left as it is: {#y}",
        "b.html: Markdown is left as it is: ](2)",
        "b.html: no anchor for the link a/#z",
        "b.html: no file for the link c.html",
        "b.html loads https://x.org/s.js from another machine",
    ]


def test_names_lead_to_the_reference() -> None:
    entries = entries_of()
    assert entries["num_epochs"] == "reference/settings/training.md#num_epochs"
    assert entries["HDFDataset"] == "reference/datasets/hdf/HDFDataset.md" and "Network" in entries
    assert "task" not in entries and "seq_ordering" not in entries  # a word; an option of datasets
    for target in entries.values():
        path, _, anchor = target.partition("#")
        assert path in all_pages() and (not anchor or anchor in _anchors(path)), target
    page = "# `num_epochs`\n\n%s [`Network`](x.md) %s\n\n```\n`Network`\n```\n"
    setting = "[`num_epochs`](../reference/settings/training.md#num_epochs) `num_epochs`"
    command = "[`returnn-tf check x.config`](../reference/commands.md#check)"
    plain = page % ("`num_epochs` `num_epochs`", "`returnn-tf check x.config`")
    assert link_names(plain, "guide/x.md", entries) == page % (setting, command)
    assert link_names("`num_epochs`", "reference/settings/training.md", entries) == "`num_epochs`"
