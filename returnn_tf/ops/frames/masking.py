"""Frames picked by a mask: packed next to each other, and back to the places where they came from."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf


def packed_lens(mask: Any) -> Any:
    """How many frames of each sequence are picked.

    :param mask: bool [batch, time], false in the padding
    :return: int32 [batch]
    """
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)


def packed_frames(mask: Any, size: Any) -> Any:
    """Which frame each packed frame is.

    :param mask: bool [batch, time]
    :param size: of the packed axis, at least the largest of `packed_lens`
    :return: int32 [batch, size], 0 in the padding
    """
    places = tf.cast(tf.where(mask), tf.int32)
    targets = tf.stack([places[:, 0], tf.gather_nd(last_picked(mask), places)], axis=1)
    return tf.scatter_nd(targets, places[:, 1], tf.stack([tf.shape(mask)[0], size]))


def last_picked(mask: Any) -> Any:
    """Which packed frame is the last one up to each frame, this frame included.

    :param mask: bool [batch, time]
    :return: int32 [batch, time], -1 before the first picked frame
    """
    return tf.cumsum(tf.cast(mask, tf.int32), axis=1) - 1


def spread(packed: Any, index: Any, initial: Any) -> Any:
    """A packed frame for each place.

    :param packed: [batch, packed time, ...], at least one frame
    :param index: int32 [batch, time]: packed frame of each place, negative for the initial value
    :param initial: broadcasts to [batch, 1, ...]
    :return: [batch, time, ...]
    """
    last = tf.shape(packed)[1] - 1
    values = tf.gather(packed, tf.clip_by_value(index, 0, last), batch_dims=1)
    is_set = tf.reshape(index >= 0, tf.concat([tf.shape(index), tf.ones([packed.shape.rank - 2], tf.int32)], axis=0))
    return tf.where(is_set, values, tf.cast(initial, values.dtype))
