"""Links from names in the text of pages, such as `num_epochs` or `HDFDataset`, to their entries in the reference.

The pages themselves have none: the reference exists on the site only.
"""

from __future__ import annotations

import functools
import posixpath
import re

from returnn_tf.cli.commands import COMMANDS
from returnn_tf.config.options import declared_options
from returnn_tf.config.settings import setting_groups
from tools.docs.links import slug
from tools.docs.pages import all_pages
from tools.docs.reference.kinds import KINDS
from tools.docs.reference.settings import page_of_topic

_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
#: A link, code in two backticks, or code in one, which is the group.
_CODE = re.compile(r"\[[^\]\n]*\]\([^)\n]*\)|``.+?``|`([^`\n]+)`")


def link_names(page: str, path: str, entries: dict[str, str]) -> str:
    """Return a page in which the first mention of each name links to its entry; headings and blocks stay as they are.

    :param path: of the page on the site
    :param entries: see `entries_of`
    """
    seen: set[str] = set()

    def link(match: re.Match[str]) -> str:
        words = (match[1] or "").split()
        if not words:
            return match[0]
        name = " ".join(words[:2]) if words[0] == "returnn-tf" else match[1]
        if name not in entries or name in seen or entries[name].partition("#")[0] == path:
            return match[0]
        seen.add(name)
        return "[%s](%s)" % (match[0], posixpath.relpath(entries[name], posixpath.dirname(path) or "."))

    parts = _FENCE.split(page)
    for i in range(0, len(parts), 2):
        lines = parts[i].split("\n")
        parts[i] = "\n".join(line if line.startswith("#") else _CODE.sub(link, line) for line in lines)
    return "".join(parts)


@functools.cache
def entries_of() -> dict[str, str]:
    """Return name -> page and anchor, for names that mean one thing wherever they stand.

    These are settings of several words that no class has as an option, classes with capitals, and commands.
    """
    entries: dict[str, str] = {}
    for path in all_pages():
        match = re.match(r"reference/(?:python|datasets)/(?:\w+/)?([A-Z]\w+)\.md$", path)
        if match and match[1] != "README":
            entries[match[1]] = path
    for group in setting_groups():
        for name in group.declared():
            if "_" in name and name not in _options():
                entries[name] = "%s#%s" % (page_of_topic(group), name)
    entries.update({"returnn-tf " + name: "reference/commands.md#" + slug(name) for name in COMMANDS.names()})
    return entries


@functools.cache
def _options() -> frozenset[str]:
    """Return the names of all options of layers, losses, units, datasets, optimizers and targets of exports."""
    classes = [(kind, cls) for kind in KINDS for _, cls in kind.registry.items()]
    holders = [getattr(cls, kind.options) if kind.options else cls for kind, cls in classes]
    return frozenset(name for holder in holders for name in declared_options(holder))
