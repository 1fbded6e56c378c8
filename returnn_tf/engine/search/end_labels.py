"""The labels that end a hypothesis; error rates leave them out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.graph.layer import Node
from returnn_tf.loops.frame import loop_of
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.tensor import Data


def end_labels(plan: Plan, node: Node, reference: Data) -> frozenset[int]:
    """Return the labels for which the layer ``end`` of the loop is true that chose the labels of a layer.

    There are none if the number of steps is known, as in a transducer, if there is no search, as with CTC, or if the
    end is not decided by the label.

    :param node: the layer with the hypotheses, e.g. a `decide`
    :param reference: what they are compared with
    """
    loop = loop_of_search(plan, node)
    if loop is None or loop.search is None or loop.ending.end is None:
        return frozenset()
    dims = (node.output.sparse_dim, reference.sparse_dim)
    found: set[int] = set()
    for choice in loop.search.choices:
        if any(choice.output.sparse_dim is dim for dim in dims):
            found |= loop.ending.end.layer.true_labels(choice) or frozenset()
    return frozenset(found)


def without_end(labels: Any, ends: Collection[int]) -> Any:
    """Return label indices [labels] without the end label, if the last one is such a label."""
    return labels[:-1] if len(labels) and int(labels[-1]) in ends else labels


def loop_of_search(plan: Plan, node: Node) -> Optional[LoopPlan]:
    """Return the loop that searched for what a layer has; None without search."""
    todo, seen = [node], {node}
    while todo:
        current = todo.pop(0)
        if current.output.beam is not None:
            loops = filter(None, map(loop_of, plan.all_nodes()))
            return next((loop for loop in loops if loop.path == current.output.beam.of), None)
        fresh = [source for source in current.sources if source not in seen]
        todo += fresh
        seen.update(fresh)
    return None
