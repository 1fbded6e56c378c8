"""Networks as values of layer options, and the names that they take from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.config.options import declared_options
from returnn_tf.graph.registry import LAYERS


def network_options(cls: Optional[type[Any]]) -> tuple[str, ...]:
    """Return the names of the options of a layer class that may hold a network; empty for None."""
    return () if cls is None else tuple(info.name for info in declared_options(cls).values() if info.network)


def is_network(value: Any) -> bool:
    """Return whether the value is a network rather than a single layer, whose names refer to the enclosing network."""
    return isinstance(value, Mapping) and not isinstance(value.get("class"), str)


def base_references(value: Any) -> Iterator[str]:
    """Iterate over the names ``x`` of all strings ``base:x`` inside a nested network, deeper ones included."""
    if isinstance(value, str):
        if value.startswith("base:"):
            yield value[len("base:") :]
    elif isinstance(value, Mapping):
        nested = network_options(LAYERS.find(value.get("class")))
        for key, item in value.items():
            names = base_references(item)
            if key in nested and is_network(item):
                # One level deeper, ``base:`` means this network and ``base:base:`` the one outside it.
                names = (n[len("base:") :] for n in names if n.startswith("base:"))
            yield from names
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from base_references(item)
