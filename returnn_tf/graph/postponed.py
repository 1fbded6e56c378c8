"""Values whose ops are emitted when something reads them, as few do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Callable, TypeVar

from returnn_tf.util.lazy_tf import tf

K = TypeVar("K")


class Postponed:
    """A value that is not emitted yet.

    :param emit: emits it, in the graph that is the default one now, wherever it is read first
    """

    def __init__(self, emit: Callable[[], Any]) -> None:
        self._emit, self._graph = emit, tf.compat.v1.get_default_graph()

    @cached_property
    def value(self) -> Any:
        """Return the value."""
        with self._graph.as_default():
            return self._emit()


class PostponedValues(MutableMapping[K, Any]):
    """A mapping to values, of which those that are set as `Postponed` are emitted when they are read.

    :param values: copied as they are
    """

    def __init__(self, values: Mapping[K, Any] = MappingProxyType({})) -> None:
        self._values: dict[K, Any] = dict(values._values if isinstance(values, PostponedValues) else values)

    def __getitem__(self, key: K) -> Any:
        value = self._values[key]
        return value.value if isinstance(value, Postponed) else value

    def __setitem__(self, key: K, value: Any) -> None:
        self._values[key] = value

    def __delitem__(self, key: K) -> None:
        del self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
