"""Masks and indices of frames, for the code of configs."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.util.lazy_tf import tf


def sequence_mask(lengths: Any, maxlen: Any = None, **others: Any) -> Any:
    """Return a mask of the valid frames, bool [batch, time]."""
    return tf.sequence_mask(lengths, maxlen, **others)


def sequence_mask_time_major(lengths: Any, maxlen: Any = None, **others: Any) -> Any:
    """Return a mask of the valid frames, bool [time, batch]."""
    return tf.transpose(tf.sequence_mask(lengths, maxlen, **others))


def nd_indices(indices: Any, name: Optional[str] = None, indices_batch_major: bool = True) -> Any:
    """Add the index of the sequence to frame indices, for ``tf.gather_nd``.

    :param indices: [batch, ...], or [other, batch] if not batch major
    :return: [batch, ..., 2] with (batch, index), or [other, batch, 2] with (index, batch)
    """
    del name
    indices = tf.convert_to_tensor(indices)
    axis = 0 if indices_batch_major else 1
    shape = [1] * indices.shape.rank
    shape[axis] = -1
    batch = tf.reshape(tf.range(tf.shape(indices, out_type=indices.dtype)[axis]), shape)
    batch = tf.broadcast_to(batch, tf.shape(indices))
    return tf.stack([batch, indices] if indices_batch_major else [indices, batch], axis=-1)


def flatten_with_seq_len_mask(
    x: Any,
    seq_lens: Any,
    batch_dim_axis: Optional[int] = None,
    time_dim_axis: Optional[int] = None,
    time_major: Any = None,
) -> Any:
    """Return the valid frames of all sequences, concatenated (time-major: frame by frame over all sequences).

    :param x: [batch, time, ...] or with these axes elsewhere, as said by their indices or by ``time_major``
    :param seq_lens: [batch]
    :return: [frames, ...]
    """
    if time_major is not None:
        batch_dim_axis, time_dim_axis = (1, 0) if time_major else (0, 1)
    if batch_dim_axis is None or time_dim_axis is None:
        raise TypeError("flatten_with_seq_len_mask: give time_major, or batch_dim_axis and time_dim_axis")
    rest = [i for i in range(x.shape.rank) if i not in (batch_dim_axis, time_dim_axis)]
    is_time_major = time_dim_axis < batch_dim_axis
    first = [time_dim_axis, batch_dim_axis] if is_time_major else [batch_dim_axis, time_dim_axis]
    x = tf.transpose(x, first + rest)
    mask = tf.sequence_mask(seq_lens, tf.shape(x)[0 if is_time_major else 1])
    return tf.boolean_mask(x, tf.transpose(mask) if is_time_major else mask)


def filter_ended_scores(
    x: Any,
    end_flags: Any,
    batch_dim: Any = None,
    dim: Any = None,
    score_zero: float = 0.0,
    score_rem: float = -1e30,
) -> Any:
    """Replace the scores of ended hypotheses: label 0 is certain, all others are impossible.

    :param x: [batch, labels]
    :param end_flags: bool [batch]
    :param batch_dim: not needed
    :param dim: not needed
    :param score_zero: the score of label 0
    :param score_rem: the score of the other labels
    """
    del batch_dim, dim
    first = tf.equal(tf.range(tf.shape(x)[-1]), 0)
    ended = tf.where(first, tf.cast(score_zero, x.dtype), tf.cast(score_rem, x.dtype))
    return tf.where(tf.expand_dims(end_flags, -1), ended, x)
