"""Objects that are filled while a network is planned, and do not change afterwards."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, Callable, ClassVar

from returnn_tf.config import ConfigError


class SealedError(ConfigError, AttributeError):
    """An attribute of a sealed object was set or deleted, by a class in a config or of a plug-in."""

    class_topic = "code-in-configs"


class Sealable:
    """An object whose attributes cannot be set after `seal`."""

    #: The name of the object in a refusal; "" until it is sealed.
    _sealed: ClassVar[str] = ""

    def seal(self, place: str) -> None:
        """Forbid all further changes.

        :param place: how a refusal names the object, e.g. "Layer 'output'"
        """
        object.__setattr__(self, "_sealed", place)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed:
            raise SealedError(self._refusal(name))
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if self._sealed:
            raise SealedError(self._refusal(name))
        object.__delattr__(self, name)

    def _refusal(self, name: str) -> str:
        return (
            "%s was planned and does not change any more, so %r cannot be set. What is made while ops are emitted "
            "belongs to the context, see EmitContext.set_aux." % (self._sealed, name)
        )


@functools.cache
def default_factories(cls: Any) -> list[tuple[str, Callable[[], Any]]]:
    """Return the fields of a dataclass with a factory for their default, such as lists and dicts.

    All other defaults are attributes of the class. Objects that only take these and the values given are made faster
    than by assigning each field through the check of `Sealable`.
    """
    made = [(field.name, field.default_factory) for field in dataclasses.fields(cls)]
    return [(name, make) for name, make in made if make is not dataclasses.MISSING]


def tuple_or_view(value: Any) -> Any:
    """Return a list as a tuple, a dict as a view, and anything else as it is."""
    if isinstance(value, list):
        return tuple(value)
    return types.MappingProxyType(value) if isinstance(value, dict) else value
