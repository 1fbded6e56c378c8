"""The value that a layer holds where a mask is false, in graphs that compute sequences block by block."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.block_end import at_block_end
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


def held_in_stream(ctx: EmitContext, data: Data, frames: Dim, initial: Any) -> Any:
    """Return the value that is held before the first frame of this batch; in a stream, that after the last block.

    :param initial: before the first frame of a sequence; broadcasts against ``data``
    """
    axis = data.dims.index(frames)
    if not ctx.continues:
        return initial
    frame = data.without_axes([axis])
    first = tf.squeeze(initial, axis) if initial.shape.rank else initial
    first = tf.broadcast_to(tf.cast(first, data.dtype), tf.stack(ctx.shape(frame)))
    return tf.expand_dims(ctx.state_before("held", frame, first), axis)


def pass_on_held(ctx: EmitContext, data: Data, frames: Dim, initial: Any, y: Any) -> None:
    """Pass the value that is held after the last frame on to the next block of a stream, see `held_in_stream`."""
    axis = data.dims.index(frames)
    if ctx.continues:
        first = tf.squeeze(initial, axis)
        ctx.state_after("held", data.without_axes([axis]), at_block_end(ctx, data, axis, first, y))
