"""The last frame of each sequence of a value over time."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.ops.frames.shape import expand_at
from returnn_tf.util.lazy_tf import tf


def last_frame(ctx: EmitContext, node: Node) -> Any:
    """Return the value of a node at the last frame of each sequence, 0 (false) for empty ones; without the time axis.

    Implemented as a sum over frames of which all but one are zero, so that empty sequences need no special case.
    """
    data = node.output
    x = ctx.value(node)
    axis = data.time_axis
    if axis is None:
        return x
    dim = data.dims[axis]
    last = ctx.lens(dim) - 1
    frames = expand_at(tf.range(ctx.size(dim)), [i for i in range(data.rank) if i != axis])
    if last.shape.rank:
        last = expand_at(last, [i for i in range(data.rank) if i != data.batch_axis])
    is_last = tf.broadcast_to(tf.equal(frames, last), tf.shape(x))
    if x.dtype.is_bool:
        return tf.reduce_any(tf.logical_and(is_last, x), axis=axis)
    return tf.reduce_sum(tf.where(is_last, x, tf.zeros([], x.dtype)), axis=axis)
