"""Types and values in the words of users, for messages: "a whole number or None", "a string"."""

from __future__ import annotations

import numbers
import re
from typing import Any

from returnn_tf.config.errors import shown
from returnn_tf.config.option_types import type_name
from returnn_tf.config.read_only import ReadOnlyDict, ReadOnlyList

_SINGULAR = {
    "int": "a whole number", "float": "a number", "str": "a string", "None": "None", "Any": "any value",
    "bool": "True or False",
}  # fmt: skip
_PLURAL = {"int": "whole numbers", "float": "numbers", "str": "strings", "axis": "axes", "Any": "any values"}
_LISTS = ("list", "set", "frozenset", "tuple")


def type_words(annotation: Any) -> str:
    """Return an annotation in words, for messages: "a whole number, a list of strings or None"."""
    return _any_of(type_name(annotation))


def value_words(value: Any) -> str:
    """Return what kind of value was given, for messages: "a string"; "" if that is to be seen in the value."""
    if value is None or isinstance(value, (bool, numbers.Number)):
        return ""
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (ReadOnlyDict, ReadOnlyList)):
        return "a dict" if isinstance(value, dict) else "a list"
    kind = "function" if callable(value) else type(value).__name__
    return _with_article(kind)


def shown_with_kind(value: Any, *, most: int = 300) -> str:
    """Return a value, shortened, and its kind: ``'3' (a string)``."""
    if isinstance(value, type):
        return "%s (a class)" % value.__name__
    kind = value_words(value)
    return "%s (%s)" % (shown(value, most=most), kind) if kind else shown(value, most=most)


def _any_of(name: str) -> str:
    """Return the words of a type as displayed, e.g. ``int | None``."""
    names = _split(name, " | ")
    if len(names) > 1 and "bool" in names:
        names[names.index("bool") : names.index("bool") + 1] = ["True", "False"]
    words = [_one(each) for each in names if not (each == "int" and {"float", "number"} & set(names))]
    return words[0] if len(words) == 1 else "%s or %s" % (", ".join(words[:-1]), words[-1])


def _one(name: str) -> str:
    if name in _SINGULAR:
        return _SINGULAR[name]
    generic = re.fullmatch(r"(\w+)\[(.*)\]", name)
    if generic is None:
        return _with_article(name) if name.isidentifier() and name not in ("True", "False") else name
    kind, parts = generic[1], _split(generic[2], ", ")
    if kind in _LISTS and (len(parts) == 1 or parts[-1] == "..."):
        return "a list of " + _many(parts[0])
    if kind == "dict" and len(parts) == 2:
        return "a dict" if parts[1] == "Any" else "a dict {%s: %s}" % (_bare(parts[0]), _any_of(parts[1]))
    return "a list of %d: %s" % (len(parts), ", ".join(map(_any_of, parts))) if kind in _LISTS else name


def _many(name: str) -> str:
    """Return the words of the entries of a list."""
    inner = re.fullmatch(r"list\[(.*)\]", name)
    if inner is not None:
        return "lists of " + _many(inner[1])
    names = _split(name, " | ")
    if not all(each in _PLURAL or each.isidentifier() for each in names):
        return "entries: " + _any_of(name)
    return " or ".join(_PLURAL.get(each, each if each == "None" else each + "s") for each in names)


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "[({") - (char in "])}")
        if not depth and text.startswith(separator, place):
            parts.append(text[begin:place])
            begin = place + len(separator)
    return [*parts, text[begin:]]


def _bare(name: str) -> str:
    """Return the words without an article."""
    return re.sub("^an? ", "", _any_of(name))


def _with_article(name: str) -> str:
    return "%s %s" % ("an" if name[:1].lower() in "aeiou" else "a", name)
