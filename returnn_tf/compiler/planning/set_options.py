"""Sets the options of a layer dict as attributes of a planned layer."""

from __future__ import annotations

from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.reuse_option import reuse_of
from returnn_tf.compiler.planning.scope import Scope
from returnn_tf.config.option_values import map_strings, map_values
from returnn_tf.config.options import declared_options
from returnn_tf.graph.node import Node
from returnn_tf.tensor import Dim


def set_options(scope: Scope, node: Node, spec: LayerSpec) -> None:
    """Set the options as attributes of the layer: layers by node, dims by definition."""
    layer = node.layer
    infos = declared_options(spec.cls)
    # A layer may use the plain extras of its sources, such as the axes of `concat`.
    layer.source_options = [None if isinstance(s, str) else s[1:] for s in spec.sources]
    for name, value in spec.options.items():
        info = infos[name]
        if info.refs and value is not None:
            value = map_strings(info, value, lambda ref: _dep(node, scope.resolve(ref, spec.where)))
        if name == "reuse_params":
            value = reuse_of(scope, node, value, spec.where)
        elif not info.network:
            value = map_values(value, Dim, scope.resolve_dim)
        setattr(layer, info.attribute, value)
    layer.source_options = map_values(layer.source_options, Dim, scope.resolve_dim)


def _dep(node: Node, dep: Node) -> Node:
    """Add a dependency and return it."""
    node.depend(dep)
    return dep
