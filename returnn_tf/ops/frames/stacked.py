"""The entries of a `tf.TensorArray` in one tensor, also where there are none or their sizes differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.util.lazy_tf import tf


def stacked(array: tf.TensorArray, shape: Sequence[Any]) -> tf.Tensor:
    """Stack all entries of an array; unlike `tf.TensorArray.stack`, also if it is empty, or some are not written.

    :param array: what is not written counts as zeros
    :param shape: the sizes of an entry, ints or int32 scalars; -1: any, then one entry must have been written
    :return: [entries, *shape]
    """
    if array.flow.dtype != tf.variant:  # eager, or loops made of TensorFlow 1's ops
        x = array.stack()
        return tf.reshape(x, [0, *shape]) if tf.executing_eagerly() and not len(x) else x
    x = tf.raw_ops.TensorListStack(
        input_handle=array.flow,
        element_shape=tf.convert_to_tensor(list(shape), tf.int32),
        element_dtype=array.dtype,
    )
    x.set_shape([None, *(size if isinstance(size, int) and size >= 0 else None for size in shape)])
    return x


def first_entries(array: tf.TensorArray, count: tf.Tensor, shape: Sequence[Any]) -> tf.Tensor:
    """Stack the first entries of an array, all of which are written.

    :param count: int32 scalar, may be 0
    :param shape: as in `stacked`; where there are no entries, a size of -1 becomes 0
    :return: [count, *shape]
    """
    if array.flow.dtype != tf.variant:
        return array.gather(tf.range(count))
    sizes = [tf.where(count > 0, -1, 0) if isinstance(size, int) and size < 0 else size for size in shape]
    x = tf.raw_ops.TensorListGather(
        input_handle=array.flow,
        indices=tf.range(count),
        element_shape=tf.stack(sizes) if sizes else tf.zeros([0], tf.int32),
        element_dtype=array.dtype,
    )
    x.set_shape([None, *(size if isinstance(size, int) and size >= 0 else None for size in shape)])
    return x


def padded_entries(array: tf.TensorArray, sizes: tf.Tensor, shape: Sequence[Any]) -> tf.Tensor:
    """Stack entries of different sizes along their first axis, padded by zeros.

    :param array: of at least ``count`` entries; those from there on were not written
    :param sizes: int32 [count], of the first axis of each entry
    :param shape: the sizes of the other axes, as in `stacked`
    :return: [count, largest size, ...]
    """
    if array.flow.dtype != tf.variant:
        joined = array.concat()
    else:
        joined, _ = tf.raw_ops.TensorListConcatV2(
            input_handle=array.flow,
            element_shape=tf.stack([-1, *shape]),
            leading_dims=tf.zeros(tf.expand_dims(array.size(), 0), tf.int64),
            element_dtype=array.dtype,
        )
    total = tf.shape(joined)[0]
    zeros = tf.zeros(tf.concat([[1], tf.shape(joined)[1:]], axis=0), joined.dtype)
    frames = tf.range(tf.reduce_max(tf.concat([sizes, [0]], axis=0)))
    index = tf.expand_dims(tf.cumsum(sizes, exclusive=True), 1) + frames
    index = tf.where(frames < tf.expand_dims(sizes, 1), index, total)
    return tf.gather(tf.concat([joined, zeros], axis=0), index)
