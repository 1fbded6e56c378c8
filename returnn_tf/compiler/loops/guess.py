"""Feature sizes of layer outputs as far as the config alone determines them; for loops whose dims are unknown yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config.options import declared_options
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.nested import is_network, network_options
from returnn_tf.tensor import Dim


def nested_size(layer: Any) -> Optional[int]:
    """Return the feature size that a planned layer takes from its subnetwork or unit, or None.

    :param layer: with the options as attributes
    """
    for info in declared_options(type(layer)).values():
        size = _size_of_nested(getattr(layer, info.attribute), 0) if info.network else None
        if size is not None:
            return size
    return None


def _size_of_nested(nested: Any, depth: int) -> Optional[int]:
    if not isinstance(nested, Mapping):
        return None
    return _size_of(nested, "output", depth) if is_network(nested) else _size_of({"output": nested}, "output", depth)


def _size_of(network: Mapping[str, Any], name: Any, depth: int) -> Optional[int]:
    """Return the size that the layer dict of this name gives, or that of the sources whose features it keeps."""
    layer = network.get(name) if isinstance(name, str) else None
    if not isinstance(layer, Mapping) or depth > 50:  # sources may be in a cycle
        return None
    if isinstance(layer.get("n_out"), int):
        return int(layer["n_out"])
    if isinstance(layer.get("out_dim"), Dim):
        size: Optional[int] = layer["out_dim"].size
        return size
    for key in network_options(LAYERS.find(layer.get("class"))):
        size = _size_of_nested(layer.get(key), depth + 1)
        if size is not None:
            return size
    cls = LAYERS.find(layer.get("class"))
    if cls is None or not cls.keeps_features:
        return None
    sources = layer.get("from")
    sources = list(sources) if isinstance(sources, (list, tuple)) else [sources]
    sizes = [_size_of(network, source, depth + 1) for source in sources]
    if cls.joins_features:
        return sum(size or 0 for size in sizes) if sizes and None not in sizes else None
    return next((size for size in sizes if size is not None), None)
