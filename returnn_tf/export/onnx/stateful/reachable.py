"""Which inputs of a traced function its outputs depend on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def used_inputs(graph: Any, outputs: Iterable[Any], inputs: Sequence[Any]) -> set[int]:
    """Return the indices of the inputs that tensors depend on.

    :param graph: a `tf.Graph`
    :param outputs: tensors of the graph
    :param inputs: tensors of the graph, placeholders
    """
    todo, seen = [tensor.op for tensor in outputs], set()
    while todo:
        op = todo.pop()
        if op in seen:
            continue
        seen.add(op)
        todo += [source.op for source in op.inputs]
    return {index for index, tensor in enumerate(inputs) if tensor.op in seen}
