"""Networks as values of layer options, and the names that they take from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from returnn_tf.config.options import declared_options
from returnn_tf.graph.params.reuse import output_references, owner_references
from returnn_tf.graph.registry import LAYERS


def network_options(cls: Optional[type[Any]]) -> tuple[str, ...]:
    """Return the names of the options of a layer class that may hold a network; empty for None."""
    return () if cls is None else tuple(info.name for info in declared_options(cls).values() if info.network)


def is_network(value: Any) -> bool:
    """Return whether the value is a network rather than a single layer, whose names refer to the enclosing network."""
    return isinstance(value, Mapping) and not isinstance(value.get("class"), str)


def with_changed_layers(
    network: Mapping[str, Any], change: Callable[[dict[str, Any], Optional[type[Any]]], None]
) -> dict[str, Any]:
    """Return a network of changed copies of the layers, including those nested inside layers.

    :param change: called with each copy, before those nested inside, and the class of the layer
    """
    return {name: _changed_layer(layer, change) for name, layer in network.items()}


def _changed_layer(layer: Any, change: Callable[[dict[str, Any], Optional[type[Any]]], None]) -> Any:
    if not isinstance(layer, Mapping):
        return layer
    result, cls = dict(layer), LAYERS.find(layer.get("class"))
    change(result, cls)
    for option in network_options(cls):
        inner = layer.get(option)
        if isinstance(inner, Mapping):
            changed = with_changed_layers if is_network(inner) else _changed_layer
            result[option] = changed(inner, change)
    return result


def has_inner_prev(cls: type[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a network inside a layer refers to its layers in the previous step of the loop around.

    :param options: the dict of the layer
    """
    if not cls.steps_with_loop:
        return False
    for inner in [options.get(key) for key in network_options(cls)]:
        if not isinstance(inner, Mapping):
            continue
        if is_network(inner):
            found = any(map(_has_prev, inner.values()))
        else:  # a unit: what it names itself is of the network around
            unit = LAYERS.find(inner.get("class"))
            found = unit is not None and has_inner_prev(unit, inner)
        if found:
            return True
    return False


def _has_prev(layer: Any) -> bool:
    if not isinstance(layer, Mapping):
        return False
    cls = LAYERS.find(layer.get("class"))
    nested = network_options(cls)
    texts = [item for key, item in layer.items() if key not in nested]
    return any(map(_is_prev, texts)) or (cls is not None and has_inner_prev(cls, layer))


def _is_prev(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith("prev:")
    if isinstance(value, Mapping):
        return any(map(_is_prev, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_is_prev, value))


def varies(value: Any) -> bool:
    """Return whether a layer dict, or one inside it, has a memory or the step index of a loop."""
    if isinstance(value, str):
        return value == ":i"
    if isinstance(value, (list, tuple)):
        return any(varies(v) for v in value)
    if not isinstance(value, Mapping):
        return False
    cls = LAYERS.find(value.get("class"))
    if cls is not None and cls.has_memory:
        return bool(cls.varies_by_step(value))
    return any(varies(v) for v in value.values())


def base_references(value: Any, *, of_params: bool = False) -> Iterator[str]:
    """Iterate over the names ``x`` of all strings ``base:x`` inside a nested network, deeper ones included.

    :param of_params: those whose parameters are used, by ``reuse_params``; else all others
    """
    if isinstance(value, str):
        if value.startswith("base:") and not of_params:
            yield value[len("base:") :]
    elif isinstance(value, Mapping):
        nested = network_options(LAYERS.find(value.get("class")))
        for key, item in value.items():
            if key == "reuse_params":
                found = owner_references(item) if of_params else output_references(item)
                yield from (name[len("base:") :] for name in found if name.startswith("base:"))
                continue
            names = base_references(item, of_params=of_params)
            if key in nested and is_network(item):
                # One level deeper, ``base:`` means this network and ``base:base:`` the one outside it.
                names = (n[len("base:") :] for n in names if n.startswith("base:"))
            yield from names
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from base_references(item, of_params=of_params)
