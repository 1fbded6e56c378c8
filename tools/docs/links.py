"""Links and headings of Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Callable

_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.M | re.S)
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
_LINK = re.compile(r"(?P<head>\]\()(?P<target>[^)\s]+)(?P<tail>(?:\s+\"[^\"]*\")?\))")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +\{ *#(?P<id>[\w.:-]+)[^}]*\})? *#*$", re.M)


def rewrite_links(page: str, change: Callable[[str], str]) -> str:
    """Return a page with other link targets; code is left as it is.

    :param change: function(target) -> new target
    """
    code = [*_code_spans(page)]

    def replace(match: re.Match[str]) -> str:
        if any(start <= match.start() < end for start, end in code):
            return match[0]
        return match["head"] + change(match["target"]) + match["tail"]

    return _LINK.sub(replace, page)


def links_of(page: str) -> list[str]:
    """Return the targets of all links and pictures outside code."""
    found: list[str] = []
    rewrite_links(page, lambda target: found.append(target) or target)  # type: ignore[func-returns-value]
    return found


def is_external(target: str) -> bool:
    """Return whether a target is on another machine, or an address of mail."""
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def anchors_of(page: str) -> set[str]:
    """Return the anchors of a page: those of its headings, as GitHub and the site make them, and explicit ones."""
    text = _FENCE.sub("", page)
    anchors: set[str] = set()
    for match in _HEADING.finditer(text):
        name = base = match["id"] or slug(match[1])
        count = 0
        while name in anchors:
            count += 1
            name = "%s_%d" % (base, count)
        anchors.add(name)
    return anchors | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def slug(heading: str) -> str:
    """Return the anchor of a heading: in lower case, without punctuation, with - for spaces."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def title_of(page: str, default: str) -> str:
    """Return the first heading, without marks of code.

    :param default: for a page without one
    """
    match = re.search(r"^# +(.+?)(?: +\{#.*)?$", _FENCE.sub("", page), re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).replace("`", "") if match else default


def _code_spans(page: str) -> Iterator[tuple[int, int]]:
    blocks = [match.span() for match in _FENCE.finditer(page)]
    yield from blocks
    for match in _INLINE_CODE.finditer(_FENCE.sub(lambda block: " " * len(block[0]), page)):
        if "\n\n" not in match[0]:
            yield match.span()
