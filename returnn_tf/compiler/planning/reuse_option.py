"""The option ``reuse_params`` of a planned layer: from the config to objects, and the layers that it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.compiler.planning.checks import located
from returnn_tf.compiler.planning.scope import Scope
from returnn_tf.graph.node import Node
from returnn_tf.graph.params.reuse import Reuse, ReuseLevel
from returnn_tf.tensor import Dim


def reuse_of(scope: Scope, node: Node, value: Any, where: str) -> Optional[Reuse]:
    """Return the option as an object; layers whose outputs it uses become dependencies."""
    if value is None:
        return None
    if isinstance(value, str):
        return Reuse(reuse_layer=value)
    entries = value.get("map")
    output = value.get("layer_output")
    shape = value.get("shape")
    if output is not None:
        output = scope.resolve(output, where)
        node.depend(output)
    return Reuse(
        reuse_layer=value.get("reuse_layer"),
        map=None
        if entries is None
        else {
            name: reuse_of(scope, node, entry, where) or Reuse(auto_create_missing=True)
            for name, entry in entries.items()
        },
        custom=value.get("custom"),
        auto_create_missing=bool(value.get("auto_create_missing")),
        layer_output=output,
        shape=None if shape is None else tuple(scope.resolve_dim(d) if isinstance(d, Dim) else d for d in shape),
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
        return level.network.owner_of_params(form.reuse_layer, where)


def _forms(reuse: Reuse) -> Iterator[Reuse]:
    yield reuse
    for entry in (reuse.map or {}).values():
        yield from _forms(entry)
