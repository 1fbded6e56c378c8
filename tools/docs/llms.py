"""``llms.txt``, of the form of llmstxt.org: the pages by section, with links to their Markdown."""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

from tools.docs.links import title_of
from tools.docs.nav import FOLDERS, navigation

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s+[A-Z`*\"])|$)")
#: What may stand between the title and the first paragraph: other headings, comments, pictures.
_SKIPPED = re.compile(r"#|<!--|!\[|\[!\[")
#: How a block begins that is no paragraph: lists, tables, fences, quotes, HTML, notes, indented code.
_NO_PROSE = re.compile(r"[*+-] |\d+\. |\||```|~~~|>|<|!!!|\?\?\?|    |\t")
#: Sections that a short context can leave out, so that their pages come last, below "Optional".
OPTIONAL = (FOLDERS["errors"], FOLDERS["develop"])


def llms_txt(pages: dict[str, str], name: str, summary: str, url: str) -> str:
    """Return the text of the file.

    :param pages: path on the site -> Markdown, of all pages
    :param name: of the project
    :param summary: of the project, one sentence
    :param url: of the site, with a slash at the end; "" for links relative to the file
    """
    lines, last = ["# " + name, "", "> " + summary], ["", "## Optional", ""]
    for section in navigation(pages):
        ((title, entries),) = section.items()
        items = [_item(pages, page, url) for page in _pages_of(entries)]
        if title in OPTIONAL:
            last += items
        else:
            lines += ["", "## " + title, "", *items]
    return "\n".join([*lines, *last]) + "\n"


def summary_of(page: str) -> str:
    """Return the first sentence of the paragraph with which a page begins, without links; "" if it begins otherwise.

    :param page: Markdown
    """
    for block in re.split(r"\n\s*\n", re.sub(r"^(#.*)$", r"\1\n", page, flags=re.M)):
        if not block.strip() or _SKIPPED.match(block.lstrip()):
            continue
        if _NO_PROSE.match(block.lstrip("\n")):
            return ""
        match = _SENTENCE.match(" ".join(_LINK.sub(r"\1", block).split()))
        return re.sub(r"\*\*([^*`]+)\*\*", r"\1", re.sub(r":$", ".", match[0])) if match else ""
    return ""


def _pages_of(entries: list[Any]) -> Iterator[str]:
    """Yield the pages directly in a section; of one within it, its index, which leads to the others."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            ((_, value),) = entry.items()
            if isinstance(value, str):
                yield value
            elif isinstance(value[0], str) and posixpath.basename(value[0]) == "README.md":
                yield value[0]


def _item(pages: dict[str, str], page: str, url: str) -> str:
    title = title_of(pages[page], page).replace("[", "(").replace("]", ")")
    summary = summary_of(pages[page])
    return "- [%s](%s%s)%s" % (title, url, urllib.parse.quote(page), ": " + summary if summary else "")
