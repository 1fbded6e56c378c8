"""Shapes, axes and masks of tensors, for the code of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.ops.frames.shape import move_axis as _moved
from returnn_tf.ops.frames.shape import sizes_of
from returnn_tf.util.lazy_tf import tf


def get_shape(x: Any) -> list[Any]:
    """Return the sizes of all axes, as ints where they are known."""
    return list(sizes_of(tf.convert_to_tensor(x)))


def get_shape_dim(x: Any, axis: int, name: Optional[str] = None) -> Any:
    """Return the size of an axis, as an int if it is known."""
    del name
    return get_shape(x)[axis]


def get_ndim(x: Any) -> int:
    """Return the number of axes."""
    return int(tf.convert_to_tensor(x).shape.rank)


def check_input_dim(x: Any, axis: int, dim: Any) -> Any:
    """Return the tensor, checked to have this size in an axis: at once if it is known, else at run time."""
    found = get_shape_dim(x, axis)
    if isinstance(found, int) and isinstance(dim, int):
        if found != dim:
            raise ValueError("the axis %d of %s should have the size %d" % (axis, tuple(x.shape), dim))
        return x
    with tf.control_dependencies([tf.debugging.assert_equal(found, dim, message="size of the axis %d" % axis)]):
        return tf.identity(x)


def check_input_ndim(x: Any, ndim: int) -> Any:
    """Return the tensor, checked to have this number of axes."""
    if get_ndim(x) != ndim:
        raise ValueError("the tensor of shape %s should have %d axes" % (tuple(x.shape), ndim))
    return x


def expand_dims_unbroadcast(x: Any, axis: int, dim: Any, name: Optional[str] = None) -> Any:
    """Insert a new axis of size ``dim`` and repeat the entries along it."""
    x = tf.expand_dims(x, axis)
    axis = axis if axis >= 0 else axis + x.shape.rank
    return tf.tile(x, [dim if i == axis else 1 for i in range(x.shape.rank)], name=name)


def expand_multiple_dims(x: Any, axes: Sequence[int], name: Optional[str] = None) -> Any:
    """Insert axes of size 1 at these indices of the result."""
    x = tf.convert_to_tensor(x)
    rank = x.shape.rank + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = tf.expand_dims(x, axis, name=name)
    return x


def tile_transposed(x: Any, axis: int, multiples: Any) -> Any:
    """Repeat each entry of an axis: [a, b] becomes [a, a, b, b]."""
    return tf.repeat(x, multiples, axis=axis)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Exchange two axes."""
    x = tf.convert_to_tensor(x)
    perm = list(range(x.shape.rank))
    perm[axis1], perm[axis2] = perm[axis2], perm[axis1]
    return tf.transpose(x, perm)


def move_axis(x: Any, old_axis: int, new_axis: int, name: Optional[str] = None) -> Any:
    """Move one axis; the others keep their order."""
    del name
    x = tf.convert_to_tensor(x)
    rank = x.shape.rank
    return _moved(x, rank, old_axis % rank, new_axis % rank)


def constant_with_shape(x: Any, shape: Any, dtype: Any = None, name: Optional[str] = None) -> Any:
    """Return a tensor of this shape filled with one number.

    :param dtype: default: that of the number
    """
    value = tf.convert_to_tensor(x, dtype=dtype) if dtype is None or not tf.is_tensor(x) else tf.cast(x, dtype)
    return tf.fill(shape, value, name=name)


def identity(x: Any) -> Any:
    """Return the argument."""
    return x


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
