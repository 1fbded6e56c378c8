"""The output of inner layers on zeros: "apply(0)" as the initial output of `masked_computation` and subnetworks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class UnitOnZeros:
    """The unit, computed for one frame of zeros, with all its states as before the first frame.

    :param nodes: of the unit, in the order of their computation
    :param result: the output of the unit
    :param sources: the nodes that the unit sees as its sources
    :param frames: the frame axis, None in a step of a loop
    """

    nodes: list[Node]
    result: Node
    sources: Sequence[Node]
    frames: Optional[Dim]

    def emit(self, ctx: EmitContext, data: Data) -> Any:
        """Emit a tensor that broadcasts against the layout of ``data``."""
        inner = ctx.lowering.child()
        needed = self._needed()
        # Values prepared for the steps of the loop belong to other inputs.
        inner.dims.masks = {}
        inner.values.aux = {node: value for node, value in inner.values.aux.items() if node not in needed}
        if any(node.loop_states for node in needed):
            inner.loop.index = tf.constant(0)
        for node in needed:
            self._one_frame(inner, node)
            for dep in node.deps:
                self._one_frame(inner, dep)
        for node in needed:
            for dep in node.deps:
                if dep not in needed and (
                    dep in self.sources or dep not in inner.values.outputs or self._frame_axes(dep)
                ):
                    shape = [inner.dims.get_size(d) for d in dep.output.dims]
                    inner.values.outputs[dep] = tf.zeros(tf.stack(shape) if shape else [], dep.output.dtype)
            for key, (_, initial) in node.loop_states.items():
                inner.loop.inputs[node, key] = initial(EmitContext(node, inner))
        for node in needed:
            emit_node(inner, node)
        value, axes = inner.values.outputs[self.result], self._frame_axes(self.result)
        value = tf.squeeze(value, axis=axes) if axes else value
        return to_layout(value, self.result.output.without_axes(axes), data)

    def _needed(self) -> list[Node]:
        todo, needed = [self.result], {self.result}
        while todo:
            for dep in todo.pop().deps:
                if dep in self.nodes and dep not in self.sources and dep not in needed:
                    needed.add(dep)
                    todo.append(dep)
        return [node for node in self.nodes if node in needed]

    def _frame_axes(self, node: Node) -> list[int]:
        return [i for i, dim in enumerate(node.output.dims) if dim.is_loop or dim is self.frames]

    def _one_frame(self, lowering: Lowering, node: Node) -> None:
        for axis in self._frame_axes(node):
            dim = node.output.dims[axis]
            lowering.dims.sizes[dim], lowering.dims.lens[dim] = 1, tf.constant(1)
