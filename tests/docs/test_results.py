"""The table of results has the figures of the pages that it links to."""

from __future__ import annotations

import re

import pytest

from tools.docs.links import links_of
from tools.docs.repository import ROOT


def figures(text: str) -> set[str]:
    """Return the decimal numbers of a text."""
    return set(re.findall(r"(?<![\d.])\d+\.\d+(?![\d.]*\d)", text))


def _rows() -> list[tuple[str, str]]:
    """Return (page, result) of each row; a row without a link belongs to the page of the one above."""
    page, rows = "", []
    for line in (ROOT / "docs" / "results.md").read_text(encoding="utf8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and figures(cells[2]):
            page = next((link.partition("#")[0] for link in links_of(cells[0])), page)
            rows.append((page, cells[2]))
    return rows


def test_figures_are_those_of_the_pages() -> None:
    rows = _rows()
    texts = {page: (ROOT / "docs" / page).read_text(encoding="utf8") for page, _ in rows}
    assert len(rows) > 20 and len(texts) > 5
    assert [(page, result) for page, result in rows if not figures(result) <= figures(texts[page])] == []


@pytest.mark.parametrize(
    "text, found",
    [("| 2.99 % | 88 s", {"2.99"}), ("**3.23**, 12.3/6.7", {"3.23", "12.3", "6.7"}), ("v1.2.3, 16 of 20", set())],
)
def test_figures(text: str, found: set[str]) -> None:
    assert figures(text) == found
