"""All pages of the site as Markdown: those of docs/, made ones, and those of files that these link to."""

from __future__ import annotations

import functools
import posixpath
import re
from pathlib import Path

from tools.docs.links import title_of
from tools.docs.reference.blocks import block_pages
from tools.docs.reference.classes import pages_of_kind
from tools.docs.reference.compat import compat_pages
from tools.docs.reference.kinds import KINDS
from tools.docs.reference.program import error_pages, program_pages
from tools.docs.reference.python import python_pages
from tools.docs.reference.settings import settings_pages
from tools.docs.repository import ROOT, pages_of_files

DOCS = ROOT / "docs"


@functools.cache
def all_files() -> dict[str, str]:
    """Return path on the site -> Markdown, or text of a picture. The links are still those of the repository."""
    written = written_pages()
    files = {**written, **made_files(written)}
    return {**files, **pages_of_files(_only_pages(files))}


@functools.cache
def all_pages() -> dict[str, str]:
    """Return path on the site -> Markdown."""
    return _only_pages(all_files())


def _only_pages(files: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in files.items() if name.endswith(".md")}


def written_pages() -> dict[str, str]:
    """Return the pages below docs/."""
    return {str(path.relative_to(DOCS)): _read(path) for path in sorted(DOCS.rglob("*.md"))}


def made_files(written: dict[str, str]) -> dict[str, str]:
    """Return the pages that are made from the code, and their drawings.

    :param written: the pages below docs/
    """
    files: dict[str, str] = {}
    for kind in KINDS:
        files.update(pages_of_kind(kind))
    files.update({**settings_pages(), **program_pages(), **python_pages(written), **compat_pages()})
    files.update(block_pages())
    files.update(error_pages(topics_of_errors()))
    files["reference/README.md"] = _index(files)
    return {name: _with_links(name, text) if name.endswith(".md") else text for name, text in files.items()}


def _with_links(name: str, page: str) -> str:
    """Return a made page in which the names of pages, ``docs/data.md``, are links to them."""
    up = posixpath.relpath(".", posixpath.dirname(name))
    page = re.sub(r"(?<![`\[])`docs/([\w/-]+)\.md`(?!`)", r"[\1](%s/\1.md)" % up, page)
    return re.sub(r"<code>docs/([\w/-]+)\.md</code>", r'<a href="%s/\1.html">\1</a>' % up, page)


def topics_of_errors() -> dict[str, str]:
    """Return file name -> Markdown of the topics that `returnn-tf explain` shows."""
    return {path.name: _read(path) for path in sorted((ROOT / "returnn_tf").rglob("explain/**/*.md"))}


def _index(files: dict[str, str]) -> str:
    """Return the page of all made pages; the navigation follows its order."""
    names = [name for name in files if re.match(r"reference/(\w+/README|[\w-]+)\.md$", name)]
    rows = ["* [%s](%s)" % (title_of(files[name], name), name[len("reference/") :]) for name in names]
    return "# Reference\n\nMade from the declarations and docstrings of this version.\n\n" + "\n".join(rows)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf8")
