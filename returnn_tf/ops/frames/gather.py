"""Gathering and scattering along one axis."""

from __future__ import annotations

from typing import Any

from returnn_tf.ops.frames.empty_axes import at_least_one
from returnn_tf.ops.frames.shape import expand_at, size_of
from returnn_tf.util.lazy_tf import tf


def slices(x: Any, start: Any, size: Any, limit: Any, *, axis: int, batch_dims: int) -> Any:
    """Return ``x[start : start + size]`` along an axis for every start.

    :param x: the first ``batch_dims`` axes are common with ``start``
    :param start: int32 [*common, *own]
    :param size: int or scalar
    :param limit: entries from this index on are zeroed; broadcasts against ``start``
    :param axis: the axis of ``x``
    :return: [*common, *axes of x before axis, *own, size, *rest]
    """
    index = tf.expand_dims(start, -1) + tf.range(size)
    count = size_of(x, axis)
    valid = tf.logical_and(index >= 0, index < tf.minimum(tf.expand_dims(limit, -1), count))
    index = tf.clip_by_value(index, 0, tf.maximum(count - 1, 0))
    y = tf.gather(at_least_one(x, axis), index, axis=axis, batch_dims=batch_dims)
    valid = expand_at(valid, range(batch_dims, axis))
    valid = expand_at(valid, range(valid.shape.rank, y.shape.rank))
    return tf.where(valid, y, tf.zeros_like(y))


def scatter_add(x: Any, index: Any, size: Any, *, batch_dims: int, drop_invalid: bool) -> Any:
    """Invert a gather: entries with equal indices are summed.

    :param x: [*batch, n, ...]
    :param index: int32 [*batch, n]
    :param size: of the new axis
    :param drop_invalid: whether indices outside of [0, size) are left out; else they are an error (on CPU)
    :return: [*batch, size, ...]
    """
    shape = tf.shape(x)
    lead = shape[:batch_dims]
    count = tf.reduce_prod(lead)
    offset = tf.reshape(tf.range(count) * size, tf.concat([lead, [1]], axis=0))
    outside = tf.logical_or(index < 0, index >= size)
    total = count * size
    ids = tf.where(outside, -1 if drop_invalid else total, index + offset)
    inner = shape[batch_dims + 1 :]
    flat = tf.reshape(x, tf.concat([[count * shape[batch_dims]], inner], axis=0))
    y = tf.math.unsorted_segment_sum(flat, tf.reshape(ids, [-1]), total)
    return tf.reshape(y, tf.concat([lead, [size], inner], axis=0))


def clip_to_valid(position: Any, lens: Any) -> Any:
    """Clip positions to [0, lens - 1].

    :param lens: broadcasts against the positions along their first axes
    """
    if lens.shape.rank:
        lens = expand_at(lens, range(lens.shape.rank, position.shape.rank))
    return tf.clip_by_value(position, 0, tf.maximum(lens - 1, 0))
