"""Repetition of frames."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf


def repeat_frames(x: Any, counts: Any) -> tuple[Any, Any]:
    """Repeat frame ``t`` of sequence ``b`` ``counts[b, t]`` times.

    :param x: [batch, time, ...]
    :param counts: int32 [batch, time], 0 for padded frames
    :return: ([batch, new time, ...], int32 [batch] new lengths); padded frames are zero
    """
    ends = tf.cumsum(counts, axis=1)
    lens = tf.reduce_sum(counts, axis=1)
    size = tf.reduce_max(tf.concat([lens, [0]], axis=0))
    position = tf.broadcast_to(tf.range(size)[tf.newaxis], [tf.shape(x)[0], size])
    frame = tf.searchsorted(ends, position, side="right")
    # Frames after the end come from the zeros after the last one.
    padded = tf.pad(x, [[0, 0], [0, 1]] + [[0, 0]] * (x.shape.rank - 2))
    return tf.gather(padded, frame, batch_dims=1), lens
