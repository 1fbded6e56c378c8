"""Estimate of the memory that a step of training needs, from the plan alone. No TensorFlow.

What the backward pass reads is kept: about the output of each layer, more for layers that say so
(`Layer.kept_per_output`), and beside it the gradients of two layers. Temporary values of single ops are not counted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.graph.layer import Node
from returnn_tf.loops.frame import loop_of
from returnn_tf.tensor import Data, Dim


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a batch.

    :param sequences: in the batch
    :param lengths: of the dynamic dims of the inputs
    :param default: length of dynamic dims about which nothing is known
    """

    sequences: int
    lengths: Mapping[Dim, int]
    default: int

    def of(self, dim: Dim) -> int:
        """Return the size of a dim."""
        if dim.is_batch:
            return self.sequences
        if dim.size is not None:
            return dim.size
        known = self.lengths.get(dim)
        if known is not None:
            return known
        if dim.expr is None:
            return self.default
        return int(dim.expr.evaluate(self.of, max))


def params_bytes(plan: Plan, *, trainable: bool = False) -> int:
    """Return the bytes of all parameters, or of the trainable ones."""
    return sum(spec.size * item_bytes(spec.dtype) for spec in plan.params.values() if spec.trainable or not trainable)


def activation_bytes(plan: Plan, sizes: Sizes) -> int:
    """Return the bytes that a training step keeps for its backward pass, and needs there."""
    owners = plan.loss_owners()
    needed = plan.needed([*plan.roots(), *owners.values()], owners)
    readers: dict[Node, list[Node]] = {}
    for node in plan.all_nodes():
        for source in node.deps:
            readers.setdefault(source, []).append(node)
    read = _read_backwards(list(plan.all_nodes()), readers, set(owners.values()))
    kept = sum(_node_bytes(node, sizes, read) for node in plan.nodes if node in needed)
    outputs = [_numbers(node.output, sizes) * item_bytes(node.output.dtype) for node in plan.nodes if node in needed]
    return kept + 2 * max(outputs, default=0)


def _read_backwards(nodes: Sequence[Node], readers: Mapping[Node, Sequence[Node]], with_loss: set[Node]) -> set[Node]:
    """Return the nodes whose outputs the backward pass reads."""
    found: set[Node] = set()
    for node in reversed(nodes):
        by_others = any(
            reader in found if reader.layer.only_reshapes else reader.layer.gradient_reads_sources()
            for reader in readers.get(node, ())
        )
        if by_others or node in with_loss or node.layer.gradient_reads_output():
            found.add(node)
    return found


def _node_bytes(node: Node, sizes: Sizes, read: set[Node]) -> int:
    """Return the bytes for a node, with those for all steps of a loop."""
    loop = loop_of(node)
    inside = sum(_node_bytes(inner, sizes, read) for inner in node.inner)
    if loop is not None:
        return inside * (1 if loop.checkpoint_steps else sizes.of(loop.loop_dim))
    if node not in read or node.layer.only_reshapes:
        return inside
    return inside + math.ceil(_numbers(node.output, sizes) * node.layer.kept_per_output()) * item_bytes(
        node.output.dtype
    )


def _numbers(data: Data, sizes: Sizes) -> int:
    beam = data.beam.size if data.beam is not None else 1
    return beam * math.prod(sizes.of(dim) for dim in data.dims)


def item_bytes(dtype: str) -> int:
    """Return the bytes of a number; of a string, those of its pointer."""
    bits = "".join(letter for letter in dtype if letter.isdigit())
    return int(bits) // 8 if bits else (8 if dtype == "string" else 1)
