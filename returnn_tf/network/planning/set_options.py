"""Sets the options of a layer dict as attributes of a planned layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.config.options import declared_options, map_strings, map_values
from returnn_tf.graph.node import Node
from returnn_tf.network.planning.parse import LayerSpec
from returnn_tf.network.planning.scope import Scope
from returnn_tf.tensor import Dim


def set_options(scope: Scope, node: Node, spec: LayerSpec) -> None:
    """Set the options as attributes of the layer: layers by node, dims by definition."""
    layer = node.layer
    infos = declared_options(spec.cls)
    # A layer may use the plain extras of its sources, such as the axes of `concat`.
    layer.source_options = [None if isinstance(s, str) else s[1:] for s in spec.sources]  # type: ignore[attr-defined]
    for name, value in spec.options.items():
        info = infos[name]
        if info.refs and value is not None:
            value = map_strings(info, value, lambda ref: _dep(node, scope.resolve(ref, spec.where)))
        if name == "reuse_params":
            value = _resolve_reuse(scope, node, value, spec.where)
        elif not info.network:
            value = map_values(value, Dim, scope.resolve_dim)
        setattr(layer, info.attribute, value)
    layer.source_options = map_values(layer.source_options, Dim, scope.resolve_dim)  # type: ignore[attr-defined]


def _resolve_reuse(scope: Scope, node: Node, value: Any, where: str) -> Any:
    if isinstance(value, str):
        return _dep(node, scope.owner_of_params(value, where))
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, item in value.items():
            if key == "map":
                result[key] = {k: _resolve_reuse(scope, node, v, where) for k, v in item.items()}
            elif key == "reuse_layer" and isinstance(item, str):
                result[key] = _dep(node, scope.owner_of_params(item, where))
            elif key == "layer_output" and isinstance(item, str):
                result[key] = _dep(node, scope.resolve(item, where))
            else:
                result[key] = map_values(item, Dim, scope.resolve_dim)
        return result
    return value


def _dep(node: Node, dep: Node) -> Node:
    """Add a dependency and return it."""
    node.depend(dep)
    return dep
