"""Objects that do not change any more once the network is planned."""

from __future__ import annotations

import types
from typing import Any, ClassVar


class Freezable:
    """An object whose attributes cannot be set any more after `freeze`."""

    _is_frozen: ClassVar[bool] = False

    def freeze(self) -> None:
        """Forbid all further changes."""
        self.__dict__["_is_frozen"] = True


def _set_attribute(self: Freezable, name: str, value: Any) -> None:
    if self._is_frozen:
        raise AttributeError(
            "%r was planned and does not change any more, so %r cannot be set. What is made while ops are emitted "
            "belongs to the context, see EmitContext.set_aux." % (self, name)
        )
    object.__setattr__(self, name, value)


# Not in the class body, where type checkers would take it to mean that any attribute may be set.
Freezable.__setattr__ = _set_attribute  # type: ignore[assignment]


def read_only(value: Any) -> Any:
    """Return a list as a tuple, a dict as a view, and anything else as it is."""
    if isinstance(value, list):
        return tuple(value)
    return types.MappingProxyType(value) if isinstance(value, dict) else value
