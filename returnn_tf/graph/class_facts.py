"""Facts about a class that follow from its code."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any


def mentions(cls: type, name: str, base: type) -> bool:
    """Return whether a class uses an attribute or global of this name.

    Searched are its methods, those of its bases that do not derive from ``base``, and functions of the same module that
    these call.
    """
    values = [v for c in cls.__mro__ if c is cls or not issubclass(c, base) for v in vars(c).values()]
    seen = set()
    while values:
        for code, names in _codes(values.pop()):
            if name in code.co_names:
                return True
            called = [names[n] for n in code.co_names if isinstance(names.get(n), types.FunctionType)]
            new = [f for f in called if f.__module__ == names.get("__name__") and f not in seen]
            seen.update(new)
            values += new
    return False


def _codes(value: Any) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Yield the code of a function, method or property and of all functions defined inside of it, with its globals."""
    if isinstance(value, property):
        for function in (value.fget, value.fset):
            yield from _codes(function)
        return
    value = getattr(value, "__func__", value)
    todo = [value.__code__] if isinstance(value, types.FunctionType) else []
    while todo:
        code = todo.pop()
        yield code, value.__globals__
        todo += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
