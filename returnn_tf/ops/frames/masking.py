"""Frames selected by a mask: packed densely, and spread back to their positions."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf


def packed_lens(mask: Any) -> Any:
    """Count the selected frames of each sequence.

    :param mask: bool [batch, time], false in the padding
    :return: int32 [batch]
    """
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)


def packed_frames(mask: Any, size: Any) -> Any:
    """Return the frame index of each packed frame.

    :param mask: bool [batch, time]
    :param size: of the packed axis, at least the largest of `packed_lens`
    :return: int32 [batch, size], 0 in the padding
    """
    places = tf.cast(tf.where(mask), tf.int32)
    targets = tf.stack([places[:, 0], tf.gather_nd(last_picked(mask), places)], axis=1)
    return tf.scatter_nd(targets, places[:, 1], tf.stack([tf.shape(mask)[0], size]))


def last_picked(mask: Any) -> Any:
    """Return the index of the last packed frame up to and including each frame.

    :param mask: bool [batch, time]
    :return: int32 [batch, time], -1 before the first picked frame
    """
    return tf.cumsum(tf.cast(mask, tf.int32), axis=1) - 1


def spread(packed: Any, index: Any, initial: Any) -> Any:
    """Spread packed frames to the positions given by an index.

    :param packed: [batch, packed time, ...], at least one frame
    :param index: int32 [batch, time]: packed frame of each place, negative for the initial value
    :param initial: broadcasts to [batch, 1, ...]
    :return: [batch, time, ...]
    """
    last = tf.shape(packed)[1] - 1
    values = tf.gather(packed, tf.clip_by_value(index, 0, last), batch_dims=1)
    is_set = tf.reshape(index >= 0, tf.concat([tf.shape(index), tf.ones([packed.shape.rank - 2], tf.int32)], axis=0))
    return tf.where(is_set, values, tf.cast(initial, values.dtype))
