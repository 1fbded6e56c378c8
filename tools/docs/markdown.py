"""What differs between Markdown on GitHub, in which the pages are written, and that of the site."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_ITEM = re.compile(r"^ *([*+-]|\d+\.) +\S")
#: Marks of tests/docs/run_page.py before blocks of code.
_FILE = re.compile(r"^<!-- file: (\S+) -->\n+^(```+\w*)$", re.M)


def for_site(page: str) -> str:
    """Return a page with the names of files over their code, blank lines before lists, and deeper indents in them."""
    return _lists(_FILE.sub(_with_title, page))


def _with_title(match: re.Match[str]) -> str:
    fence = match[2] if match[2].strip("`") else match[2] + "text"
    return '%s title="%s"' % (fence, match[1])


def _lists(page: str) -> str:
    """Indent what belongs to items of lists by multiples of four, where GitHub takes two or three."""
    lines: list[str] = []
    fence = ""
    indents: list[int] = []  # columns at which the text of the open items begins
    for line in page.split("\n"):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if fence:
            inner = min(indent, indents[-1]) if indents else 0
            lines.append(" " * (4 * len(indents)) + line[inner:] if text else "")
            if text.rstrip() == fence:
                fence = ""
            continue
        match = _ITEM.match(line)
        is_in_list = bool(indents)
        while indents and text and indent < indents[-1] and (match or not lines[-1]):
            indents.pop()
        if match:
            if lines and lines[-1] and not is_in_list:
                lines.append("")
            lines.append(" " * (4 * len(indents)) + text)
            indents.append(len(match[0]) - 1)
            continue
        if _FENCE.match(line):
            fence = _FENCE.match(line)[1]  # type: ignore[index]
        lines.append(" " * (4 * len(indents)) + (line[indents[-1] :].lstrip(" ") if indents else line) if text else "")
    return "\n".join(lines)
