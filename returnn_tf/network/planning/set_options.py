"""The options of a layer dict become the attributes of a planned layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping

from returnn_tf.config.options import declared_options, map_strings, map_values
from returnn_tf.graph.node import Node
from returnn_tf.network.planning.parse import LayerSpec
from returnn_tf.tensor import Dim

if TYPE_CHECKING:
    from returnn_tf.network.planning.builder import NetworkBuilder


def set_options(builder: NetworkBuilder, node: Node, spec: LayerSpec) -> None:
    """The options as attributes of the layer: layers by node, dims by definition."""
    layer = node.layer
    layer.node = node  # type: ignore[misc]
    infos = declared_options(spec.cls)
    # A layer may keep the plain dict of its sources' axes, see `concat`.
    layer.source_options = [None if isinstance(s, str) else s[1:] for s in spec.sources]  # type: ignore[attr-defined]
    for name, value in spec.options.items():
        info = infos[name]
        if info.refs and value is not None:
            value = map_strings(info, value, lambda ref: _dep(node, builder.resolve(ref, spec.where)))
        if name == "reuse_params":
            value = _resolve_reuse(builder, node, value, spec.where)
        elif name not in ("subnetwork", "unit"):
            value = map_values(value, Dim, builder.state.resolve_dim)
        setattr(layer, info.attribute, value)
    layer.source_options = map_values(layer.source_options, Dim, builder.state.resolve_dim)  # type: ignore[attr-defined]


def _resolve_reuse(builder: NetworkBuilder, node: Node, value: Any, where: str) -> Any:
    if isinstance(value, str):
        return _dep(node, builder.owner_of_params(value, where))
    if isinstance(value, Mapping):
        result: Dict[str, Any] = {}
        for key, item in value.items():
            if key == "map":
                result[key] = {k: _resolve_reuse(builder, node, v, where) for k, v in item.items()}
            elif key == "reuse_layer" and isinstance(item, str):
                result[key] = _dep(node, builder.owner_of_params(item, where))
            elif key == "layer_output" and isinstance(item, str):
                result[key] = _dep(node, builder.resolve(item, where))
            else:
                result[key] = map_values(item, Dim, builder.state.resolve_dim)
        return result
    return value


def _dep(node: Node, dep: Node) -> Node:
    """Notes a dependency; gives it back."""
    node.depend(dep)
    return dep
