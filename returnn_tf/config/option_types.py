"""Types of options: whether a value of a config fits an annotation, and how types and values are displayed."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import numbers
import re
import typing
from typing import Annotated, Any, Union

from returnn_tf.config.errors import shown
from returnn_tf.config.read_only import ReadOnlyDict, ReadOnlyList


@dataclasses.dataclass(frozen=True)
class Written:
    """In ``Annotated[Any, Written(...)]``: what a config may write where the attribute later holds something else.

    :param type: type of the value in the config
    :param name: the type as displayed (default: the name of ``type``)
    """

    type: Any
    name: str = ""


def fits_type(value: Any, expected: Any, *, refs: bool = False) -> bool:
    """Return whether a value of a config fits an annotation.

    Ints pass as float, numpy scalars as Python ones, lists as tuples, 0 and 1 as bool.

    :param refs: strings are layer names and pass for any type
    """
    if expected is Any or (refs and isinstance(value, str)):
        return True
    origin, args = _parts(expected)
    if origin is Union:
        return any(fits_type(value, part, refs=refs) for part in args)
    plain = origin or expected
    if plain in (list, tuple, collections.abc.Sequence):
        return isinstance(value, (list, tuple)) and _items_fit(value, plain, args, refs)
    if plain in (dict, collections.abc.Mapping):
        return isinstance(value, collections.abc.Mapping) and (
            not args or all(fits_type(k, args[0]) and fits_type(v, args[1], refs=refs) for k, v in value.items())
        )
    if plain in (set, frozenset):
        return isinstance(value, (set, frozenset, list, tuple)) and _items_fit(value, plain, args, refs)
    if plain is collections.abc.Callable:
        return callable(value)
    if expected is bool:
        return _is_bool(value) or (isinstance(value, int) and value in (0, 1))
    if expected is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if expected is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    return isinstance(expected, type) and isinstance(value, expected)


@functools.cache
def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and the arguments of a type as it may be written in a config; None and () of a plain class."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is not Annotated:
        return origin, args
    written = next((a for a in args[1:] if isinstance(a, Written)), None)
    return Union, (args[0] if written is None else written.type,)


def with_python_numbers(value: Any, expected: Any) -> Any:
    """Return a value, also a list or tuple, with numbers of Python in place of numpy scalars.

    Numpy scalars pass as Python numbers (`fits_type`), but dims do not combine with them. They stay where the
    annotation names them, as their dtype counts there, and in dicts: options inside are taken one by one, and the names
    that code of a config gets are the user's.
    """
    if type(value) in (list, tuple):
        return value if _names_scalars(expected) else type(value)(with_python_numbers(item, Any) for item in value)
    is_scalar = type(value).__module__ == "numpy" and (isinstance(value, numbers.Number) or _is_bool(value))
    return value.item() if is_scalar and not _names_scalars(expected) else value


@functools.cache
def _names_scalars(annotation: Any) -> bool:
    """Return whether an annotation contains a type of numpy scalars, without importing numpy."""
    if any((base.__module__, base.__name__) == ("numpy", "generic") for base in getattr(annotation, "__mro__", ())):
        return True
    origin, args = _parts(annotation)
    return origin is not collections.abc.Callable and any(map(_names_scalars, args))


def _is_bool(value: Any) -> bool:
    """Return whether a value is a bool of Python or numpy, without importing numpy."""
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _items_fit(value: Any, origin: Any, args: tuple[Any, ...], refs: bool) -> bool:
    if not args:
        return True
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        return len(value) == len(args) and all(fits_type(v, a, refs=refs) for v, a in zip(value, args))
    return all(fits_type(v, args[0], refs=refs) for v in value)


def type_name(annotation: Any) -> str:
    """Return an annotation as displayed to readers."""
    if annotation is type(None):
        return "None"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        written = next((a for a in args[1:] if isinstance(a, Written)), None)
        return type_name(args[0]) if written is None else written.name or type_name(written.type)
    if origin is Union:
        return " | ".join(sorted(map(type_name, args), key=lambda name: name == "None"))
    if origin is collections.abc.Callable:
        return "function"
    plain = {collections.abc.Sequence: "list", collections.abc.Mapping: "dict"}.get(origin, "")
    if plain or (args and all(a is Any for a in args)):
        plain = plain or origin.__name__
        shown = "" if all(a in (Any, ...) for a in args) else "[%s]" % ", ".join(map(type_name, args))
        return plain + shown
    if origin is not None and not isinstance(origin, type):
        return str(annotation).replace("typing.", "")
    if origin is not None and args:
        return "%s[%s]" % (origin.__name__, ", ".join("..." if a is Ellipsis else type_name(a) for a in args))
    return getattr(annotation, "__name__", str(annotation).replace("typing.", ""))


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
    """Return the kind of a value for messages: "a string"; "" where the value shows its kind."""
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
