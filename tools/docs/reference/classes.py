"""Pages of registered classes with options: one for each, and an index by topic."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from returnn_tf.config.reference import first_sentence, split_options
from returnn_tf.config.registry import Registry
from tools.docs.reference.docstrings import code, doc_of, inline
from tools.docs.reference.options import option_table

Pages = dict[str, str]
#: function(class, path of its page) -> further sections, and further files by path
More = Callable[[type[Any], str], tuple[str, Pages]]


@dataclass(frozen=True)
class Kind:
    """A kind of classes that configs name.

    :param folder: of the pages, below reference/
    :param title: of the index
    :param registry: with the classes
    :param base: class with the options of all
    :param command: `returnn-tf COMMAND NAME` prints the same; "" if none does
    :param options: attribute of a class that holds the class of its options; "": it is that itself
    :param intro: Markdown, at the top of the index
    :param more: further sections of a page
    :param by_topic: whether the pages are in folders by the packages of the classes
    """

    folder: str
    title: str
    registry: Registry[Any]
    base: type[Any]
    command: str = ""
    options: str = ""
    intro: str = ""
    more: More = lambda cls, path: ("", {})
    by_topic: bool = False


def pages_of_kind(kind: Kind) -> Pages:
    """Return path -> Markdown, or text of another file, of the index and all classes."""
    folder = "reference/" + kind.folder
    topics: dict[str, list[tuple[str, type[Any]]]] = {}
    for name, cls in kind.registry.items():
        if cls.__module__.startswith("returnn_tf."):  # not plug-ins that happen to be installed
            topics.setdefault(_topic(cls) if kind.by_topic else "", []).append((name, cls))
    pages: Pages = {}
    index = ["# %s" % kind.title, kind.intro]
    if kind.command:
        index.append("On the command line: `returnn-tf %s` and `returnn-tf %s NAME`." % (kind.command, kind.command))
    for topic in sorted(topics, key=lambda name: name.rpartition(".")[2]):
        place = posixpath.join(folder, topic.rpartition(".")[2]) if topic else folder
        if topic:
            title = topic.rpartition(".")[2]
            doc = inline(" ".join((sys.modules[topic].__doc__ or "").partition("\n\n")[0].split()))
            index += ["## %s" % title, doc, _list(kind, topics[topic], title + "/")]
            pages["%s/README.md" % place] = "# %s\n\n%s\n\n%s" % (title, doc, _list(kind, topics[topic], ""))
        else:
            index.append(_list(kind, topics[topic], ""))
        for name, cls in topics[topic]:
            pages.update(_page(kind, name, cls, "%s/%s.md" % (place, name)))
    pages["%s/README.md" % folder] = "\n\n".join(part for part in index if part)
    return pages


def _topic(cls: type[Any]) -> str:
    """Return the package of a class, at the second level below returnn_tf, at the first for modules of that."""
    parts = cls.__module__.split(".")
    return ".".join(parts[: min(3, len(parts) - 1)])


def _list(kind: Kind, classes: Iterable[tuple[str, type[Any]]], folder: str) -> str:
    rows = []
    for name, cls in classes:
        link = "[%s](%s%s.md)" % (code(name), folder, name)
        rows.append("* %s%s: %s" % (link, _aliases(kind, cls), inline(first_sentence(cls))))
    return "\n".join(rows)


def _aliases(kind: Kind, cls: type[Any]) -> str:
    names = kind.registry.names_of(cls)[1:]
    return " (%s)" % ", ".join(map(code, names)) if names else ""


def _page(kind: Kind, name: str, cls: type[Any], path: str) -> Pages:
    names = kind.registry.names_of(cls)[1:]
    also = "Also called %s." % ", ".join(map(code, names)) if names else ""
    own, shared = split_options(getattr(cls, kind.options) if kind.options else cls, kind.base)
    more, files = kind.more(cls, path)
    parts = [
        "# %s %s" % (kind.registry.what.capitalize(), code(name)),
        also,
        doc_of(cls),
        more,
        "## Options",
        option_table(own),
    ]
    if shared:
        parts += ["## Options of all %s" % kind.title.lower(), _folded(option_table(shared))]
    return {path: "\n\n".join(part for part in parts if part), **files}


def _folded(table: str) -> str:
    return '<details class="note" markdown="0"><summary>Show them</summary>\n%s\n</details>' % table


def sections(entries: Sequence[tuple[str, str]]) -> str:
    """Return sections of a page.

    :param entries: (heading, Markdown) of each
    """
    return "\n\n".join("## %s\n\n%s" % entry for entry in entries)


def heading(text: str, anchor: str) -> str:
    """Return a heading in code with an anchor. In anchors, __ would be markup, so that it is left out."""
    return "%s {#%s}" % (code(text), anchor.replace("__", ""))
