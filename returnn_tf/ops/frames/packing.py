"""Valid frames of all sequences concatenated, and spread again."""

from __future__ import annotations

from typing import Any

from returnn_tf.ops.frames.empty_axes import at_least_one
from returnn_tf.ops.frames.shape import size_of, sizes_of
from returnn_tf.util.lazy_tf import tf


def frame_indices(mask: Any) -> Any:
    """Return the indices of the valid frames.

    :param mask: bool [a, b]
    :return: int32 [n, 2], row by row
    """
    return tf.cast(tf.where(mask), tf.int32)


def pack(x: Any, indices: Any) -> Any:
    """Concatenate the valid frames.

    :param x: [a, b, ...]
    :param indices: [n, 2], see `frame_indices`
    :return: [n, ...]
    """
    sizes = sizes_of(x)
    flat = tf.reshape(x, [sizes[0] * sizes[1]] + sizes[2:])
    return tf.gather(flat, indices[:, 0] * sizes[1] + indices[:, 1])


def unpack(x: Any, indices: Any, first: Any, second: Any) -> Any:
    """Invert `pack`; other frames are zero.

    :param x: [n, ...]
    :param first: size of the first axis of the result
    :param second: size of the second axis
    :return: [first, second, ...]
    """
    shape = tf.stack([tf.cast(s, tf.int32) for s in [first, second] + sizes_of(x)[1:]])
    result = tf.scatter_nd(indices, x, shape)
    result.set_shape([None, None] + x.shape.as_list()[1:])
    return result


def unflatten(x: Any, sizes: Any, shape: Any) -> Any:
    """Split one axis of every sequence into several, with separate sizes for each sequence.

    :param x: [batch, frames, ...], row-major in the sizes of the sequence
    :param sizes: int32 [batch, n]
    :param shape: list of the n sizes of the padded axes
    :return: [batch, *shape, ...]; entries beyond the sizes are zero
    """
    count = len(shape)
    index, valid = tf.constant(0), tf.constant(True)
    for i in range(count):
        own = tf.reshape(sizes[:, i], [-1] + [1] * count)
        position = tf.reshape(tf.range(shape[i]), [1] + [1] * i + [-1] + [1] * (count - 1 - i))
        index = index * own + position
        valid = tf.logical_and(valid, position < own)
    frames = size_of(x, 1)
    valid = tf.logical_and(valid, index < frames)
    result = tf.gather(at_least_one(x, 1), tf.clip_by_value(index, 0, tf.maximum(frames - 1, 0)), batch_dims=1)
    for _ in range(x.shape.rank - 2):
        valid = tf.expand_dims(valid, -1)
    return tf.where(valid, result, tf.zeros_like(result))
