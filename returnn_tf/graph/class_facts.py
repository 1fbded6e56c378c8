"""Facts about a class that follow from its code."""

from __future__ import annotations

import types
from typing import Any, Iterator


def mentions(cls: type, name: str) -> bool:
    """Return whether a method that the class defines itself uses an attribute or global of this name."""
    return any(name in code.co_names for value in vars(cls).values() for code in _codes(value))


def _codes(value: Any) -> Iterator[types.CodeType]:
    """Yield the code of a function, method or property, and of all functions nested in it."""
    if isinstance(value, property):
        for function in (value.fget, value.fset):
            yield from _codes(function)
        return
    value = getattr(value, "__func__", value)
    todo = [value.__code__] if isinstance(value, types.FunctionType) else []
    while todo:
        code = todo.pop()
        yield code
        todo += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
