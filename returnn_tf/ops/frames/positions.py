"""Positional encodings: sinusoids of absolute positions, and clipped distances between frames."""

from __future__ import annotations

import math
from typing import Any

from returnn_tf.ops.frames.shape import sizes_of
from returnn_tf.util.lazy_tf import tf

_MIN_TIMESCALE, _MAX_TIMESCALE = 1.0, 1e4


def sinusoids(position: Any, channels: int, dtype: str) -> Any:
    """Return ``sin(position / s)`` for all time scales s, then ``cos(position / s)``, then a 0 if channels is odd.

    The time scales go from 1 to 10000, in equal ratios.

    :param position: int or float [...]
    :param dtype: of floats, see `Semantics`
    :return: [..., channels]
    """
    count = channels // 2
    step = math.log(_MAX_TIMESCALE / _MIN_TIMESCALE) / max(count - 1, 1)
    rates = tf.constant([math.exp(-i * step) / _MIN_TIMESCALE for i in range(count)], dtype)
    angles = tf.cast(position, dtype)[..., None] * rates
    parts = [tf.sin(angles), tf.cos(angles)]
    if channels % 2:
        parts.append(tf.zeros_like(tf.cast(position, dtype))[..., None])
    return tf.concat(parts, axis=-1)


def clipped_distances(queries: Any, keys: Any, clipping: int) -> Any:
    """Return ``clip(key - query, -clipping, clipping) + clipping``, a row of a table with ``2 * clipping + 1`` rows.

    :param queries: int positions [queries]
    :param keys: int positions [keys]
    :return: int32 [queries, keys]
    """
    return tf.clip_by_value(keys[None, :] - queries[:, None], -clipping, clipping) + clipping


def by_distance(scores: Any, size: Any, clipping: int) -> Any:
    """Expand scores by clipped distance to scores by key, with slices and reshapes instead of a gather.

    Rows that are one entry longer than they are read shift each row by one entry.

    :param scores: [..., queries, 2 * clipping + 1]
    :param size: number of queries, which is that of the keys
    :return: ``y[..., t, s] = scores[..., t, clip(s - t, -clipping, clipping) + clipping]``, [..., queries, keys]
    """
    leading = sizes_of(scores)[:-2]
    unused = tf.maximum(clipping - (size - 1), 0)
    scores = scores[..., unused : 2 * clipping + 1 - unused]
    far = tf.maximum(size - 1 - clipping, 0)
    scores = tf.concat([tf.repeat(scores[..., :1], far, -1), scores, tf.repeat(scores[..., -1:], far, -1)], axis=-1)
    width = tf.maximum(2 * size - 1, 0)  # distances from -(size - 1) to size - 1
    scores = tf.pad(scores, [(0, 0)] * (scores.shape.rank - 1) + [(0, 1)])
    flat = tf.reshape(scores, tf.stack([*leading, -1]))[..., size - 1 : size - 1 + size * width]
    return tf.reshape(flat, tf.stack([*leading, size, width]))[..., :size]
