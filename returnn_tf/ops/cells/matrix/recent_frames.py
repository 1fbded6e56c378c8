"""The last frames before each frame, for token shift and short convolutions over time."""

from __future__ import annotations

from typing import Optional

from returnn_tf.util.lazy_tf import tf


def with_recent_frames(
    x: tf.Tensor, recent: tf.Tensor, count: int, lengths: Optional[tf.Tensor]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return each frame and those before it, over whole sequences.

    :param x: [time, batch, d]
    :param recent: state [batch, count * d], the frames before the first one, the oldest first
    :param lengths: int [batch]; None: all sequences have all frames
    :return: arrays [time, batch, d]: ``x[t - count]``, ..., ``x[t]``; the state at the end of each sequence
    """
    padded, last = behind_recent_frames(x, recent, count, lengths)
    return [padded[i : tf.shape(x)[0] + i] for i in range(count)] + [x], last


def behind_recent_frames(
    x: tf.Tensor, recent: tf.Tensor, count: int, lengths: Optional[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the sequences with the frames before them, as one array; for the arguments see `with_recent_frames`.

    :return: [count + time, batch, d], the state at the end of each sequence
    """
    n_frames, batch, d = tf.shape(x)[0], tf.shape(x)[1], x.shape[2]
    before = tf.transpose(tf.reshape(recent, [batch, count, d]), [1, 0, 2])
    padded = tf.concat([before, x], 0)
    if lengths is None:
        last = tf.transpose(padded[n_frames:], [1, 0, 2])
    else:
        time = tf.cast(lengths, tf.int32)[:, tf.newaxis] + tf.range(count)
        sequence = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], tf.shape(time))
        last = tf.gather_nd(padded, tf.stack([time, sequence], -1))
    return padded, tf.reshape(last, [batch, count * d])


def shift_in(x: tf.Tensor, recent: tf.Tensor, count: int) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return one frame and those before it.

    :param x: [batch, d]
    :param recent: state [batch, count * d], the oldest first
    :return: arrays [batch, d], of which the last one is ``x``; the state after this frame
    """
    d = x.shape[-1]
    state = tf.concat([recent[:, d:], x], 1)
    return [recent[:, i * d : (i + 1) * d] for i in range(count)] + [x], state
