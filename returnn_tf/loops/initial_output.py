"""The value that a layer in a loop has before the first step."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.node import Node
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class InitialOutput:
    """The value of ``prev:x`` in the first step.

    :param constant: a number for all entries
    :param param: node and name of the parameter for "var"
    :param node: a layer
    :param apply: the layer x itself, to be computed on zeros, and its sources in the loop
    :param state: a function of the `EmitContext` that emits it
    """

    constant: Any = 0
    param: Optional[Any] = None
    node: Optional[Node] = None
    apply: Optional[Node] = None
    state: Optional[Any] = None

    def emit(self, ctx: EmitContext, data: Data) -> Any:
        """Emit a tensor in the layout of ``data``."""
        shape = ctx.shape(data)
        if self.state is not None:
            value = self.state(ctx)
        elif self.node is not None:
            value = to_layout(ctx.value(self.node), self.node.output, data)
        elif self.param is not None:
            owner, name = self.param
            flat = tf.convert_to_tensor(ctx.lowering.variables[owner.params[name].name])
            value = tf.reshape(flat, [-1 if i == data.feature_axis else 1 for i in range(data.rank)])
        elif self.apply is not None:
            value = self._apply_on_zeros(ctx)
        else:
            value = tf.cast(self.constant, data.dtype)
        return tf.broadcast_to(tf.cast(value, data.dtype), tf.stack(shape) if shape else [])

    def _apply_on_zeros(self, ctx: EmitContext) -> Any:
        node = self.apply
        assert node is not None
        inner = ctx.lowering.child()
        inner.masks = {}
        for dim in node.output.dims:
            if dim.is_loop:  # one step suffices
                inner.sizes[dim], inner.lens[dim] = 1, tf.constant(1)
        for source in node.deps:
            shape = [inner.get_size(d) for d in source.output.dims]
            inner.values[source] = tf.zeros(tf.stack(shape) if shape else [], source.output.dtype)
        value = node.layer.emit(type(ctx)(node, inner))
        return tf.squeeze(value, axis=node.output.loop_axes) if node.output.loop_axes else value
