"""Sequences split into batches of overlapping chunks, and merged again."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.native.chunk import chunk_ops, native_chunk, native_unchunk
from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.shape import size_of, transpose
from returnn_tf.ops.frames.windows import axis_slice
from returnn_tf.util.lazy_tf import tf


def chunk_count(frames: Any, size: int, step: int) -> Any:
    """Return the number of chunks of a sequence."""
    return tf.maximum(-(-(frames - size) // step), 0) + 1


def _ops_for(x: Any, *_: Any) -> Any:
    ops = x.dtype == tf.float32 and chunk_ops()
    return ops if ops and pays(CHUNK_TRIAL, _width(x), x.dtype) else None


def _width(x: Any) -> Optional[int]:
    """Return the numbers of a frame, the product of the axes after the second one, if it is known."""
    number: Optional[int] = x.shape[2:].num_elements()
    return number


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


def _case(size: Size) -> Case:
    inputs = draw((1.0, (4 * size.frames, size.batch, size.width)))
    cut = 50, 25

    def native(ops: Any, x: Any) -> list[Any]:
        chunks = native_chunk(ops, x, *cut)
        return [chunks, native_unchunk(ops, chunks * chunks, tf.shape(x)[0], *cut)]

    def plain(x: Any) -> list[Any]:
        chunks = plain_form(chunk)(x, *cut)
        return [chunks, plain_form(unchunk)(chunks * chunks, tf.shape(x)[0], *cut)]

    return Case(inputs, native, plain)


CHUNK_TRIAL = Trial("chunk", "chunk", __name__, "CHUNK_TRIAL", _case, "features", (40, 512))
