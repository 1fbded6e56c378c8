"""The Markdown of all pages, the made ones included, means the same on GitHub and on the site. Needs no MkDocs."""

from __future__ import annotations

import re

import pytest

from tools.docs.pages import all_pages

_FENCE = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^ *\2 *$", re.M | re.S)
_ITEM = re.compile(r"( *)(\d+)\. ")


def mistakes_of(page: str) -> list[str]:
    """Return what is wrong with the headings, lists, tables and fences of a page."""
    text = _FENCE.sub(lambda match: match[1] + "CODE", page)
    found = ["a fence is not closed"] if re.search(r"^ *(```|~~~)", text, re.M) else []
    levels = [len(marks) for marks in re.findall(r"^(#{1,6}) ", text, re.M)]
    if levels[:1] != [1] or levels.count(1) != 1:
        found.append("levels of headings: %s" % levels)
    found += ["heading of level %d after %d" % (b, a) for a, b in zip(levels, levels[1:]) if b > a + 1]
    return found + _broken_lists(text) + _broken_tables(text)


def _broken_lists(text: str) -> list[str]:
    """Return numbered items that do not go on with the list above them, so that the site begins with 1 again."""
    found, last = [], 0
    for line in text.split("\n"):
        item = _ITEM.match(line)
        if item and not item[1]:
            if int(item[2]) not in (1, last + 1):
                found.append("item %s after %d" % (item[2], last))
            last = int(item[2])
        elif line and not line.startswith(" "):
            last = 0
    return found


def _broken_tables(text: str) -> list[str]:
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text + "\n", re.M):
        rows = table.splitlines()
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        if len(widths) > 1:
            found.append("table %s has rows of %s cells" % (rows[0], sorted(width - 1 for width in widths)))
    return found


def test_pages() -> None:
    found = {name: mistakes_of(page) for name, page in all_pages().items()}
    assert {name: mistakes for name, mistakes in found.items() if mistakes} == {}
    assert len(found) > 300


@pytest.mark.parametrize(
    "page, mistakes",
    [
        ("# A\n\n1. b\n\n   ```\n   x\n   ```\n\n2. c\n\n## D\n", []),
        ("# A\n\n1. b\n\n```\nx\n```\n\n2. c\n", ["item 2 after 0"]),
        ("# A\n\n### B\n", ["heading of level 3 after 1"]),
        ("# A\n\n# B\n", ["levels of headings: [1, 1]"]),
        ("B\n", ["levels of headings: []"]),
        ("# A\n\n| a | b |\n|---|---|\n| `c | d` | e |\n", ["table | a | b | has rows of [2, 3] cells"]),
        ("# A\n\n| a | b |\n|---|---|\n| `c \\| d` | e |\n", []),
        ("# A\n\n```\nx\n", ["a fence is not closed"]),
        ("# A\n\n````\n```\n# x\n````\n", []),
    ],
)
def test_mistakes(page: str, mistakes: list[str]) -> None:
    assert mistakes_of(page) == mistakes
