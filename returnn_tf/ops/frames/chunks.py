"""Sequences split into batches of overlapping chunks, and merged again."""

from __future__ import annotations

from typing import Any

from returnn_tf.native.chunk import chunk_ops, native_chunk, native_unchunk
from returnn_tf.native.dispatch import form
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.shape import size_of, transpose
from returnn_tf.ops.frames.windows import axis_slice
from returnn_tf.util.lazy_tf import tf


def chunk_count(frames: Any, size: int, step: int) -> Any:
    """Return the number of chunks of a sequence."""
    return tf.maximum(-(-(frames - size) // step), 0) + 1


def _ops_for(x: Any, *_: Any) -> Any:
    return x.dtype == tf.float32 and chunk_ops()


@form(native_chunk, where=_ops_for)
def chunk(x: Any, size: int, step: int) -> Any:
    """Split sequences: chunk c has the frames ``c * step ... c * step + size - 1``, zero-padded at the end.

    :param x: [time, batch, ...]
    :return: [size, batch * chunks, ...]; the chunks of a sequence are neighbours
    """
    count = chunk_count(size_of(x, 0), size, step)
    covered = tf.maximum((count - 1) * step + size, size_of(x, 0))
    x = pad_axis(x, 0, 0, covered - size_of(x, 0))
    y = tf.gather(x, tf.range(count) * step + tf.range(size)[:, None])  # [size, chunks, batch, ...]
    y = transpose(y, [0, 2, 1] + list(range(3, y.shape.rank)))
    return tf.reshape(y, tf.concat([[size, -1], tf.shape(x)[2:]], axis=0))


@form(native_unchunk, where=_ops_for)
def unchunk(chunks: Any, frames: Any, size: int, step: int) -> Any:
    """Invert `chunk`: the mean where chunks overlap, 0 in frames that no chunk covers.

    A chunk is cut into pieces of ``step`` frames. The first pieces of all chunks, concatenated, are a sequence, so
    are the second ones, shifted by a piece, and so on: there are as many terms as chunks overlap.

    :param chunks: float [size, batch * chunks, ...]
    :param frames: of the result
    :return: [frames, batch, ...]
    """
    count, pieces = chunk_count(frames, size, step), -(-size // step)
    rest = tf.shape(chunks)[2:]
    x = tf.reshape(chunks, tf.concat([[size, -1, count], rest], axis=0))
    x = pad_axis(x, 0, 0, pieces * step - size)
    x = tf.reshape(x, tf.concat([[pieces, step, -1, count], rest], axis=0))
    x = transpose(x, [0, 3, 1, 2] + list(range(4, x.shape.rank)))  # [pieces, chunks, step, batch, ...]
    x = tf.reshape(x, tf.concat([[pieces, count * step, -1], rest], axis=0))
    y = tf.add_n([pad_axis(x[i], 0, i * step, (pieces - 1 - i) * step) for i in range(pieces)])
    y = pad_axis(y, 0, 0, tf.maximum(frames - tf.shape(y)[0], 0))
    t = tf.range(tf.shape(y)[0])
    first, last = tf.maximum(-(-(t - size + 1) // step), 0), tf.minimum(t // step, count - 1)
    covered = tf.reshape(tf.cast(tf.maximum(last - first + 1, 1), y.dtype), [-1] + [1] * (y.shape.rank - 1))
    return axis_slice(y / covered, 0, 0, frames)
