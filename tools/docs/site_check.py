"""Check a built site: links and anchors lead somewhere, no Markdown is left, nothing comes from other machines."""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path
from typing import Optional

#: Elements that load what they name; `a` only leads there.
_LOADING = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
#: Relations of <link> that load nothing.
_RELATIONS = ("canonical", "prev", "next", "alternate")

#: Elements whose text is no prose.
_CODE = ("code", "pre", "script", "style", "title")
#: What is left of Markdown that was not understood: attributes, links, headings, rules of tables, fences.
_MARKUP = re.compile(r"\{[#:.][^}\n]*\}|\]\([^)\n]*\)|^#{1,6} .*|\|-{3,}.*|```.*", re.M)


class _Page(HTMLParser):
    """The ids and links of a page, and what is left of its Markdown."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.markup: list[str] = []
        self._in_code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        self._in_code += tag in _CODE
        values = {key: value for key, value in attrs if value is not None}
        self.ids.update(values[key] for key in ("id", "name") if key in values and (key == "id" or tag == "a"))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in _LOADING and _LOADING[tag] in values and values.get("rel") not in _RELATIONS:
            self.loaded.append(values[_LOADING[tag]])

    def handle_endtag(self, tag: str) -> None:
        self._in_code -= tag in _CODE

    def handle_data(self, data: str) -> None:
        if not self._in_code:
            self.markup += _MARKUP.findall(data)


def mistakes_of(site: Path) -> list[str]:
    """Return a line for each broken link, missing anchor, file from another machine and piece of raw Markdown.

    :param site: the folder with the built pages
    """
    pages: dict[str, _Page] = {}
    for path in site.rglob("*.html"):
        page = _Page()
        page.feed(path.read_text(encoding="utf8"))
        pages[path.relative_to(site).as_posix()] = page
    mistakes = []
    for name, page in sorted(pages.items()):
        if name == "404.html":  # its links are those of a server's root
            continue
        mistakes += ["%s: Markdown is left as it is: %s" % (name, text) for text in page.markup]
        for link in page.links + page.loaded:
            if urllib.parse.urlsplit(link).scheme or link.startswith("//"):
                if link in page.loaded and not link.startswith("data:"):
                    mistakes.append("%s loads %s from another machine" % (name, link))
                continue
            path_part, _, anchor = link.partition("#")
            path_part = urllib.parse.unquote(path_part.partition("?")[0])
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path_part)) if path_part else name
            if target == "." or (site / target).is_dir():
                target = posixpath.normpath(posixpath.join(target, "index.html"))
            if not (site / target).exists():
                mistakes.append("%s: no file for the link %s" % (name, link))
            elif anchor and target in pages and urllib.parse.unquote(anchor) not in pages[target].ids:
                mistakes.append("%s: no anchor for the link %s" % (name, link))
    return list(dict.fromkeys(mistakes))
