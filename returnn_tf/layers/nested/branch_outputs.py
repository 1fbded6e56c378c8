"""Outputs that both branches of `cond` have."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import match_axes


@dataclasses.dataclass(frozen=True)
class BranchOutput:
    """An output of both branches, in the layout of the true one.

    :param nodes: of the true and the false branch
    :param mapping: axis of the false one -> axis of the true one
    """

    nodes: tuple[Node, Node]
    mapping: Sequence[int]

    @property
    def data(self) -> Data:
        """Return the template."""
        return self.nodes[0].output

    @classmethod
    def of(cls, ctx: PlanContext, true: Node, false: Node) -> BranchOutput:
        """Return the output; the axes of both must be the same.

        :raises ConfigError: they are not
        """
        data, other = true.output, false.output
        mapping = match_axes(other, data)
        made: list[Any] = [  # dims that each branch creates, so they differ although they are meant to be the same
            axis for axis, target in enumerate(mapping) if target is None and _is_new(other.dims[axis])
        ]
        free = [axis for axis in range(data.rank) if axis not in mapping and _is_new(data.dims[axis])]
        for axis, target in zip(made, free):
            mapping[axis] = target
        if None in mapping or data.rank != other.rank or data.dtype != other.dtype:
            raise ctx.error(
                "both layers must have the same axes, but true_layer has %s and false_layer %s." % (data, other)
            )
        if (data.sparse_dim is None) != (other.sparse_dim is None) or data.dim != other.dim:
            raise ctx.error("the features differ: true_layer has %s, false_layer %s." % (data, other))
        return cls((true, false), [axis for axis in mapping if axis is not None])

    def value(self, lowering: Lowering, branch: int) -> Any:
        """Return the value of a branch, in the layout of the true one."""
        node = self.nodes[branch]
        value = lowering.values[node]
        return to_layout(value, node.output, self.data, list(self.mapping)) if branch else value

    def dim(self, axis: int, branch: int) -> Dim:
        """Return the dim that a branch has for an axis of the true one."""
        return self.nodes[branch].output.dims[self.mapping.index(axis) if branch else axis]


def _is_new(dim: Dim) -> bool:
    return dim.is_dynamic and dim.expr is None and dim.auto
