"""Medians over groups of sequences."""

from __future__ import annotations

from typing import Any

from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.shape import sizes_of
from returnn_tf.util.lazy_tf import tf


def median_of_groups(x: Any, mask: Any, count: int) -> Any:
    """Return the median of each group of entries in succession along the first axis.

    :param x: float [batch, ...]
    :param mask: bool of the shape of x: what counts. Where nothing does, the result is 0
    :param count: entries in a group; the last group may have fewer
    :return: [ceil(batch / count), ...]; of an even number the larger of both middle values
    """
    x = tf.where(mask, x, tf.constant(x.dtype.min, x.dtype))
    missing = -tf.shape(x)[0] % count
    x, mask = pad_axis(x, 0, 0, missing, x.dtype.min), pad_axis(mask, 0, 0, missing, False)
    rest = sizes_of(x)[1:]
    ordered = tf.sort(tf.reshape(x, [-1, count, *rest]), axis=1, direction="DESCENDING")
    counted = tf.reduce_sum(tf.cast(tf.reshape(mask, [-1, count, *rest]), tf.int32), axis=1, keepdims=True)
    middle = tf.equal(tf.reshape(tf.range(count), [1, count] + [1] * len(rest)), (counted + 1) // 2 - 1)
    return tf.reduce_sum(tf.where(middle, ordered, tf.zeros_like(ordered)), axis=1)
