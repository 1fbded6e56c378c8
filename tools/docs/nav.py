"""The navigation: sections by folder, pages in the order in which the README.md of the folder links to them.

Configs are left out: the pages about them link to them.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from tools.docs.links import links_of, title_of
from tools.docs.repository import FOLDER

#: Folders below docs/ and made ones, in the order of the tabs -> title.
FOLDERS = {
    "guide": "Guide",
    "cookbook": "Cookbook",
    "": "Topics",
    "reference": "Reference",
    "errors": "Errors",
    "develop": "Development",
}
#: Pages of docs/ itself that stand before all tabs.
_FIRST = ("README.md", "start.md", "coming-from-returnn.md")
#: Pages of files of the repository that are part of a section.
_FROM_REPOSITORY = {
    "develop": (
        "CONTRIBUTING.md",
        "tests/README.md",
        "native_ops/README.md",
        "native_ops/MEASUREMENTS.md",
        "CHANGELOG.md",
    )
}

#: Pages of docs/ itself that are part of a section, at the place at which its README.md links to them.
_MOVED = {"guide": ("data.md", "training-on-clusters.md")}

#: Before the titles of pages with settings, which are those of other pages else.
SETTINGS = "Settings: "

Nav = list[Any]


def navigation(pages: dict[str, str]) -> Nav:
    """Return the navigation in the form of ``nav`` in mkdocs.yml.

    :param pages: path on the site -> Markdown, of all pages
    """
    home = [{_short_title(pages, name): name} for name in _FIRST if name in pages]
    nav: Nav = [{"Home": home}]
    for folder, title in FOLDERS.items():
        entries = _section(pages, folder)
        if folder == "":
            entries = [entry for entry in entries if isinstance(entry, dict) and entry not in home]
        wanted = ("%s/%s" % (FOLDER, name) for name in _FROM_REPOSITORY.get(folder, ()))
        entries += [{_short_title(pages, name): name} for name in wanted if name in pages]
        if entries:
            nav.append({title: entries})
    return nav


def ordered(pages: dict[str, str], folder: str) -> list[str]:
    """Return the pages and subfolders directly in a folder, subfolders as "a/b/".

    First its README.md, then what that links to in its order, then the others by name.
    """
    index = posixpath.join(folder, "README.md")
    prefix = folder + "/" if folder else ""
    parts = {name[len(prefix) :].partition("/") for name in pages if name.startswith(prefix) and name != index}
    moved = {name for names in _MOVED.values() for name in names} if not folder else set()
    names = sorted({prefix + head + slash for head, slash, _ in parts} - moved)
    names += [name for name in _MOVED.get(folder, ()) if name in pages]
    linked = [posixpath.normpath(posixpath.join(folder, t.partition("#")[0])) for t in links_of(pages.get(index, ""))]
    places = {name: place for place, name in reversed(list(enumerate(linked)))}

    def place_of(name: str) -> int:
        forms = (name + "README.md", name.rstrip("/"), name[: -len(".md")])  # a text file is linked without .md
        return min(places.get(form, len(linked)) for form in forms)

    return [index] * (index in pages) + sorted(names, key=place_of)


def _section(pages: dict[str, str], folder: str) -> Nav:
    """Return the pages of a folder and its subfolders; of the top folder, the pages only."""
    entries: Nav = []
    for name in ordered(pages, folder):
        if posixpath.basename(name) == "README.md":
            entries.append(name)
        elif name.endswith(".config.md"):
            continue  # the page about the config links to it
        elif not name.endswith("/"):
            entries.append({_short_title(pages, name): name})
        elif folder:
            index = pages.get(name + "README.md", "")
            entries.append({title_of(index, posixpath.basename(name[:-1])): _section(pages, name[:-1])})
    return entries


def _short_title(pages: dict[str, str], name: str) -> str:
    """Return the title of a page as the navigation shows it: that of the page, for a class its name."""
    stem = posixpath.basename(name)[: -len(".md")]
    is_of_class = re.match(r"reference/(?!settings/)\w+/", name) is not None
    return stem if is_of_class else title_of(pages[name], stem).replace(SETTINGS, "")
