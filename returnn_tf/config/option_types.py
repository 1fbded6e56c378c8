"""Types of options: whether a value of a config fits an annotation, and how a type is displayed."""

from __future__ import annotations

import collections.abc
import dataclasses
import numbers
import typing
from typing import Annotated, Any, Union


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
    origin = typing.get_origin(expected)
    args = typing.get_args(expected)
    if origin is Annotated:
        written = next((a for a in args[1:] if isinstance(a, Written)), None)
        return fits_type(value, args[0] if written is None else written.type, refs=refs)
    if origin is Union:
        return any(fits_type(value, a, refs=refs) for a in args)
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
