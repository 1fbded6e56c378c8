"""Windows that start at each frame, as separate sequences, and distributions over the lengths of segments."""

from __future__ import annotations

from typing import Any

from returnn_tf.ops.frames.shape import expand_at, sizes_of
from returnn_tf.util.lazy_tf import tf


def cut_segments(x: Any, starts: Any, size: int) -> Any:
    """Return the windows that begin at some frames.

    :param x: [batch, frames, ...]
    :param starts: int32 [n, 2]: sequence and frame
    :return: [n, size, ...]; beyond the array its last frame is repeated
    """
    sizes = sizes_of(x)
    frames = tf.minimum(starts[:, 1:] + tf.range(size), sizes[1] - 1)
    return tf.gather(tf.reshape(x, [sizes[0] * sizes[1]] + sizes[2:]), starts[:, :1] * sizes[1] + frames)


def join_segments(x: Any) -> Any:
    """Return ``y[b, t, k] = x[b, t - k, k]``: what all segments have at frame t, the one that begins there first.

    :param x: [batch, starts, size, features]
    :return: [batch, starts, size, features]; 0 where no segment begins
    """
    frames = tf.shape(x)[1]
    moved = [tf.pad(x[:, :, k], [(0, 0), (k, 0), (0, 0)])[:, :frames] for k in range(x.shape[2])]
    return tf.stack(moved, axis=2)


def class_frequencies(classes: Any, count: int, dtype: str) -> Any:
    """Return the relative frequencies of the classes up to each frame: int [n, size] -> ``dtype`` [n, size, count]."""
    frames = tf.cast(tf.range(tf.shape(classes)[1]) + 1, dtype)
    return tf.cumsum(tf.one_hot(classes, count, dtype=dtype), axis=1) / frames[:, None]


def run_lengths(classes: Any, lens: Any, dtype: str) -> Any:
    """Return the lengths of the runs of equal classes, relative to that of the segment, at the last frame of each run.

    :param classes: int [n, size]
    :param lens: int32 [n], at least 1
    :return: ``dtype`` [n, size]; other frames are 0, the sum is 1
    """
    size = classes.shape[1]
    index = tf.range(size)
    ends = tf.concat([tf.not_equal(classes[:, 1:], classes[:, :-1]), tf.ones_like(classes[:, :1], tf.bool)], axis=1)
    ends = tf.logical_and(tf.logical_or(ends, index == lens[:, None] - 1), index < lens[:, None])
    earlier = tf.where(tf.logical_and(ends[:, None], index[None] < index[:, None]), index, -1)
    lengths = index - tf.reduce_max(earlier, axis=2)
    return tf.where(ends, tf.cast(lengths, dtype), 0.0) / tf.cast(lens, dtype)[:, None]


def run_ends(classes: Any, lens: Any) -> Any:
    """Return the mask of the ends of equal classes: int [batch, frames], int32 [batch] -> bool [batch, frames]."""
    index = tf.range(tf.shape(classes)[1])
    following = tf.concat([classes[:, 1:], classes[:, -1:]], axis=1)
    return tf.logical_or(tf.not_equal(classes, following), index == lens[:, None] - 1)


def end_weights(ends: Any, lens: Any, falloff: float, smoothing: int, dtype: str) -> Any:
    """Return a distribution over the frames in which a segment may end.

    The k-th end (from 0) has the weight ``falloff * (1 - falloff) ** k``, the last frame at least 1e-4; these are
    averaged over ``smoothing`` neighbouring frames, and divided by their sum.

    :param ends: bool [n, size]
    :param lens: int32 [n], at least 1
    :param smoothing: an odd number
    :return: ``dtype`` [n, size]
    """
    index = tf.range(tf.shape(ends)[1])
    inside = index < lens[:, None]
    ends = tf.logical_and(ends, inside)
    before = tf.cumsum(tf.cast(ends, dtype), axis=1, exclusive=True)
    weights = tf.where(ends, falloff * tf.pow(tf.constant(1.0 - falloff, before.dtype), before), 0.0)
    weights = tf.where(index == lens[:, None] - 1, tf.maximum(weights, 1e-4), weights)
    if smoothing > 1:
        weights = tf.nn.convolution(weights[..., None], tf.ones([smoothing, 1, 1], weights.dtype), padding="SAME")[
            ..., 0
        ]
        weights = tf.where(inside, weights, 0.0)
    return weights / tf.reduce_sum(weights, axis=1, keepdims=True)


def first_end_labels(labels: Any, ends: Any, lens: Any, count: int, dtype: str) -> Any:
    """Return the one-hot label at the first end of each segment.

    :param labels: int [n, size]
    :param ends: bool [n, size]
    :return: ``dtype`` [n, size, count]; all other frames are 0
    """
    ends = tf.logical_and(ends, tf.range(tf.shape(ends)[1]) < lens[:, None])
    first = tf.logical_and(ends, tf.equal(tf.cumsum(tf.cast(ends, tf.int32), axis=1, exclusive=True), 0))
    return tf.one_hot(labels, count, dtype=dtype) * tf.cast(expand_at(first, [2]), dtype)
