"""The options of a planned layer: from the config to attributes, with layers as nodes and dims by their definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.compiler.planning.checks import located
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.config.option_values import map_strings, map_values
from returnn_tf.config.options import declared_options
from returnn_tf.config.read_only import read_only
from returnn_tf.graph.layer import Node
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.graph.params.reuse import Reuse, ReuseLevel
from returnn_tf.tensor import Dim


def set_options(planner: NetworkPlanner, node: Node, spec: LayerSpec) -> None:
    """Set the options as attributes of the layer; the layers that they name become dependencies."""
    layer = node.layer
    infos = declared_options(spec.cls)
    values: dict[str, Any] = {}
    # A layer may use the plain extras of its sources, such as the axes of `concat`.
    layer.source_options = tuple(None if isinstance(s, str) else s[1:] for s in spec.sources)
    for name, value in spec.options.items():
        info = infos[name]
        if info.refs and value is not None:
            value = map_strings(info, value, lambda ref: _dep(node, planner.resolve(ref, spec.where)))
        if name == "reuse_params":
            value = _reuse_of(planner, node, value, spec.where)
        elif not info.network:
            value = map_values(value, Dim, planner.dims.resolve)
        values[info.attribute] = read_only(value, "Layer %r: the option %r" % (node.path, name))
    vars(layer).update(values)  # it is not sealed yet
    layer.source_options = map_values(layer.source_options, Dim, planner.dims.resolve)


def _dep(node: Node, dep: Node) -> Node:
    """Add a dependency and return it."""
    node.depend(dep)
    return dep


def _reuse_of(planner: NetworkPlanner, node: Node, value: Any, where: str) -> Optional[Reuse]:
    """Return the option as an object; layers whose outputs it uses become dependencies."""
    if value is None:
        return None
    if isinstance(value, str):
        return Reuse(reuse_layer=value)
    entries = value.get("map")
    output = value.get("layer_output")
    shape = value.get("shape")
    if output is not None:
        output = planner.resolve(output, where)
        node.depend(output)
    return Reuse(
        reuse_layer=value.get("reuse_layer"),
        map=None
        if entries is None
        else {
            name: _reuse_of(planner, node, entry, where) or Reuse(auto_create_missing=True)
            for name, entry in entries.items()
        },
        custom=value.get("custom"),
        auto_create_missing=bool(value.get("auto_create_missing")),
        layer_output=output,
        shape=None if shape is None else tuple(planner.dims.resolve(d) if isinstance(d, Dim) else d for d in shape),
    )


def owners_of(level: ReuseLevel) -> Iterator[Node]:
    """Yield the layers whose parameters the option of a level asks for; they are planned if they were not."""
    yield from (owner_of(level, form) for form in _forms(level.reuse) if form.reuse_layer is not None)


def owner_of(level: ReuseLevel, form: Reuse) -> Node:
    """Return the layer whose parameters one form of the option asks for; it is planned if it was not.

    :raises ConfigError: there is none, or it cannot be planned
    """
    assert form.reuse_layer is not None
    with located(level.owner.path, str(level.owner.layer.class_name), level.owner):
        where = "Layer %r (class %r): reuse_params" % (level.owner.path, level.owner.layer.class_name)
        return level.find_owner(form.reuse_layer, where)


def _forms(reuse: Reuse) -> Iterator[Reuse]:
    yield reuse
    for entry in (reuse.map or {}).values():
        yield from _forms(entry)
