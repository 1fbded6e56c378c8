"""The values at the end of each sequence of a block of frames, from which the next block resumes."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


def at_block_end(ctx: EmitContext, data: Data, axis: int, first: Any, x: Any) -> Any:
    """Return the last frame of each sequence, ``first`` for those without frames in this block; without the axis.

    :param data: template of ``x``
    :param axis: of the frames
    :param first: in the layout of a frame
    """
    both = tf.concat([tf.expand_dims(first, axis), x], axis=axis)
    lens = ctx.lens(data.dims[axis])
    batch = data.batch_axis
    if not lens.shape.rank or batch is None:
        return tf.gather(both, tf.reduce_max(lens), axis=axis)
    both = move_axis(both, data.rank, axis, 0)
    rest = batch if batch > axis else batch + 1  # the place of the batch axis behind that of the frames
    both = move_axis(both, data.rank, rest, 0)  # [batch, frames, ...]
    return move_axis(tf.gather(both, lens, batch_dims=1), data.rank - 1, 0, rest - 1)


def frame_before(ctx: EmitContext, data: Data, axis: int, first: Any, x: Any) -> Any:
    """Return the frame before those of this batch: ``first``, or in a stream the last frame of the block before.

    Parameters as for `at_block_end`.
    """
    frame = data.without_axes([axis])
    before = ctx.state_before("prev", frame, first)
    if ctx.continues:
        ctx.state_after("prev", frame, at_block_end(ctx, data, axis, before, x))
    return before


def frames_before(ctx: EmitContext, data: Data, axis: int, count: int, x: Any) -> Any:
    """Return so many frames before those of this batch: zeros, or in a stream the last ones of the blocks before.

    :param data: template of ``x``
    :param axis: of the frames
    """
    frames = data.with_dim(axis, Dim(DimKind.SPATIAL, count, "before"))
    zeros = tf.zeros(tf.stack([count if i == axis else ctx.size(dim) for i, dim in enumerate(data.dims)]), x.dtype)
    before = ctx.state_before("before", frames, zeros)
    if not ctx.has_stream(frames):
        return before
    both = move_axis(tf.concat([before, x], axis=axis), data.rank, axis, 0)
    lens, batch = ctx.lens(data.dims[axis]), data.batch_axis
    if not lens.shape.rank or batch is None:
        end = tf.reduce_max(lens)
        last = both[end : end + count]
    else:
        rest = batch if batch > axis else batch + 1  # the place of the batch axis behind that of the frames
        both = move_axis(both, data.rank, rest, 0)  # [batch, frames, ...]
        last = tf.gather(both, lens[:, None] + tf.range(count), batch_dims=1)
        last = move_axis(last, data.rank, 0, rest)
    ctx.state_after("before", frames, move_axis(last, data.rank, 0, axis))
    return before
