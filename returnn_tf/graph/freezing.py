"""Objects that become immutable once the network is planned."""

from __future__ import annotations

import types
from typing import Any


class Freezable:
    """An object whose attributes cannot be set after `freeze`."""

    def freeze(self) -> None:
        """Forbid all further changes."""
        # A check in __setattr__ would cost each of the many attributes that are set while a network is planned.
        self.__class__ = _frozen(type(self))


_FROZEN: dict[type, type] = {}


def _frozen(cls: type) -> type:
    """Return the same class without attribute assignment."""
    if cls not in _FROZEN:
        body = {"__setattr__": _refuse, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        frozen = types.new_class(cls.__name__, (cls,), exec_body=lambda namespace: namespace.update(body))
        _FROZEN[cls] = _FROZEN[frozen] = frozen
    return _FROZEN[cls]


def _refuse(self: Any, name: str, value: Any) -> None:
    raise AttributeError(
        "%r was planned and does not change any more, so %r cannot be set. What is made while ops are emitted "
        "belongs to the context, see EmitContext.set_aux." % (self, name)
    )


def read_only(value: Any) -> Any:
    """Return a list as a tuple, a dict as a view, and anything else as it is."""
    if isinstance(value, list):
        return tuple(value)
    return types.MappingProxyType(value) if isinstance(value, dict) else value
