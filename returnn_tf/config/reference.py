"""Reference texts of registered classes, generated from their docstrings and declared options."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from returnn_tf.config.options import OptionInfo, declared_options, own_options_first
from returnn_tf.config.registry import Registry


def listing(items: Sequence[tuple[str, Any]]) -> list[str]:
    """Return a line for each (name, class or function), with the first sentence of its docstring."""
    width = max([len(name) for name, _ in items], default=0)
    return ["  %s  %s" % (name.ljust(width), summary(cls)) for name, cls in items]


def summary(cls: Any) -> str:
    """Return the first sentence of the docstring, without marks of code."""
    return first_sentence(cls).replace("``", "").replace("`", "")


def first_sentence(cls: Any) -> str:
    """Return the first sentence of the docstring, with code in backticks."""
    text = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    for match in re.finditer(r"(?<!et al)(?<!e\.g)(?<!i\.e)\.(?=`{0,2}(\s|$))", text):
        sentence = text[: match.end()]
        if sentence.count("(") == sentence.count(")") and sentence.count("``") % 2 == 0:
            return sentence
    return text.rstrip(":")


def describe(registry: Registry[Any], name: str, where: str, *, options: str = "", base: type[Any], common: str) -> str:
    """Return names, docstring and options (type, default, help) of a class, its own options first.

    :param where: prefix of the error
    :param options: attribute of the class that holds the class of its options; "": it is that itself
    :param base: class with the options of all classes
    :param common: title of these
    :raises ConfigError: unknown name, with the nearest known one
    """
    cls = registry.get(name, where)
    names = registry.names_of(cls)
    head = "%s %r" % (registry.what, names[0])
    if len(names) > 1:
        head += ", also called %s" % ", ".join(map(repr, names[1:]))
    own, shared = split_options(getattr(cls, options) if options else cls, base)
    parts = [head, "", inspect.getdoc(cls) or "", "", "Options:"] + option_lines(own)
    return "\n".join(parts + (["", common] + option_lines(shared) if shared else []))


def split_options(cls: type[Any], base: type[Any]) -> tuple[list[OptionInfo], list[OptionInfo]]:
    """Return the options of a class that its base lacks or declares differently, and those of the base."""
    common = declared_options(base)
    own: list[OptionInfo] = []
    shared: list[OptionInfo] = []
    for info in own_options_first(cls):
        (shared if common.get(info.name) == info else own).append(info)
    return own, shared


def option_lines(infos: Sequence[OptionInfo]) -> list[str]:
    """Return the lines about options: name, type and default, with the help below."""
    lines = [] if infos else ["  (none)"]
    for info in infos:
        default = " (required)" if info.required else " = %r" % (info.default,)
        lines.append("  %s: %s%s" % (info.name, info.type_name, default))
        lines += textwrap.wrap(info.description, 110, initial_indent="      ", subsequent_indent="      ")
    return lines
