"""The layers to which ops of a traced graph belong, for messages about ops that a target lacks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import ExportError
from returnn_tf.export.graph_ops import all_ops, op_types
from returnn_tf.export.layer_table import choose_another
from returnn_tf.graph.emit_node import op_scope
from returnn_tf.graph.layer import Node
from returnn_tf.graph.registry import LAYERS


def layers_of_ops(plan: Plan, graph_def: Any, types: Collection[str]) -> dict[Node, list[str]]:
    """Return the layers that emitted ops of some types, and which of these types each one has.

    Layers of loops and subnetworks are found too: the innermost one counts.

    :param graph_def: traced from a network of the plan, functions included
    :param types: of ops, e.g. "StridedSlice"
    """
    scopes = _scopes(plan)
    found: dict[Node, set[str]] = {}
    for op in all_ops(graph_def):
        node = _innermost(op.name, scopes) if op.op in types else None
        if node is not None:
            found.setdefault(node, set()).add(op.op)
    return {node: sorted(names) for node, names in found.items()}


def layer_of_op(plan: Plan, name: str) -> Optional[Node]:
    """Return the innermost layer that emitted an op, None if it is of no layer.

    :param name: of the op, e.g. "loop/loop/while/loop/output/MatMul"
    """
    found: Optional[Node] = _innermost(name, _scopes(plan))
    return found


def _scopes(plan: Plan) -> dict[str, Node]:
    nodes = [node for node in plan.layers.values() if node.layer.class_name in LAYERS]  # not what loops add
    return {op_scope(node.path): node for node in nodes}


def _innermost(name: str, scopes: dict[str, Node]) -> Any:
    """Return the layer of an op by its name, e.g. "loop/loop/while/loop/output/MatMul"."""
    parts = name.split("/")[:-1]
    for end in range(len(parts), 0, -1):
        for start in range(end):  # the longest scope that ends here
            node = scopes.get("/".join(parts[start:end]))
            if node is not None:
                return node
    return None


def check_assignments(plan: Plan, graph_def: Any, target: str) -> None:
    """Check that a graph only reads its variables, for targets in which they are constants.

    :param target: name of the exporter
    :raises ConfigError: a layer changes a variable
    """
    types = {name for name in op_types(graph_def) if name.startswith("Assign")}
    for node in layers_of_ops(plan, graph_def, types):
        what = "export to %s: the layer %r (class %r) changes a variable, but there are only constants." % (
            target, node.path, node.layer.class_name
        )  # fmt: skip
        raise ExportError(" ".join(filter(None, [what, choose_another([node.layer.class_name], target)])))
