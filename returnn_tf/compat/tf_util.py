"""``from returnn.tf.util.basic import ...`` (once TFUtil): helpers for tensors in the functions of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy

from returnn_tf.compat.tensors import Data, Dim, DimensionTag, FeatureDim, SpatialDim, batch_dim, single_step_dim
from returnn_tf.config.compat_modules import register_compat
from returnn_tf.ops.activations import clipped_exp as safe_exp
from returnn_tf.ops.activations import clipped_log as safe_log
from returnn_tf.ops.frames.shape import sizes_of
from returnn_tf.util.lazy_tf import tf

register_compat(__name__, "returnn.tf.util.basic", "TFUtil")

__all__ = [
    "Data",
    "Dim",
    "DimensionTag",
    "FeatureDim",
    "SpatialDim",
    "batch_dim",
    "dot",
    "dropout",
    "expand_dims_unbroadcast",
    "flatten_with_seq_len_mask",
    "get_shape",
    "get_shape_dim",
    "get_shared_vocab",
    "matrix_triangular",
    "nd_indices",
    "safe_exp",
    "safe_log",
    "sequence_mask",
    "sequence_mask_time_major",
    "single_step_dim",
    "tile_transposed",
    "to_int32_64",
    "where_bc",
]


def where_bc(condition: Any, x: Any, y: Any, name: Optional[str] = None) -> Any:
    """Return ``tf.where`` with all three arguments broadcast to a common shape."""
    return tf.where(condition, x, y, name=name)


def nd_indices(indices: Any, indices_batch_major: bool = True) -> Any:
    """Add the index of the sequence to frame indices, for ``tf.gather_nd``.

    :param indices: [batch, ...], or [other, batch] if not batch major
    :return: [batch, ..., 2] with (batch, index), or [other, batch, 2] with (index, batch)
    """
    indices = tf.convert_to_tensor(indices)
    axis = 0 if indices_batch_major else 1
    shape = [1] * indices.shape.rank
    shape[axis] = -1
    batch = tf.reshape(tf.range(tf.shape(indices, out_type=indices.dtype)[axis]), shape)
    batch = tf.broadcast_to(batch, tf.shape(indices))
    return tf.stack([batch, indices] if indices_batch_major else [indices, batch], axis=-1)


def tile_transposed(x: Any, axis: int, multiples: Any) -> Any:
    """Repeat each entry of an axis: [a, b] becomes [a, a, b, b]."""
    return tf.repeat(x, multiples, axis=axis)


def get_shape(x: Any) -> list[Any]:
    """Return the sizes of all axes, as ints where they are known."""
    return list(sizes_of(tf.convert_to_tensor(x)))


def get_shape_dim(x: Any, axis: int) -> Any:
    """Return the size of an axis, as an int if it is known."""
    return get_shape(x)[axis]


def dropout(
    x: Any, keep_prob: Any, noise_shape: Optional[Sequence[Any]] = None, seed: Optional[int] = None, **others: Any
) -> Any:
    """Keep entries with a probability and scale them by its inverse; set the others to zero.

    :param noise_shape: 1 where an axis shares the mask
    """
    if others:
        raise TypeError("dropout: the arguments %s are not supported" % ", ".join(sorted(others)))
    if noise_shape is not None:
        sizes = get_shape(x)
        noise_shape = [size if given is None else given for given, size in zip(noise_shape, sizes)]
    if isinstance(keep_prob, (int, float)) and keep_prob >= 1:
        return tf.convert_to_tensor(x)
    return tf.nn.dropout(x, rate=1.0 - keep_prob, noise_shape=noise_shape, seed=seed)


def expand_dims_unbroadcast(x: Any, axis: int, dim: Any, name: Optional[str] = None) -> Any:
    """Insert a new axis of size ``dim`` and repeat the entries along it."""
    x = tf.expand_dims(x, axis)
    axis = axis if axis >= 0 else axis + x.shape.rank
    return tf.tile(x, [dim if i == axis else 1 for i in range(x.shape.rank)], name=name)


def dot(a: Any, b: Any, transpose_b: bool = False) -> Any:
    """Return the product over the last axis of ``a`` and the first of ``b``, or the last if transposed."""
    return tf.tensordot(a, b, [[-1], [-1 if transpose_b else 0]])


def to_int32_64(x: Any) -> Any:
    """Return the tensor unchanged if it is int32 or int64, else cast to int32."""
    return x if x.dtype in (tf.int32, tf.int64) else tf.cast(x, tf.int32)


def sequence_mask(lengths: Any, maxlen: Any = None, **others: Any) -> Any:
    """Return a mask of the valid frames, bool [batch, time]."""
    return tf.sequence_mask(lengths, maxlen, **others)


def sequence_mask_time_major(lengths: Any, maxlen: Any = None, **others: Any) -> Any:
    """Return a mask of the valid frames, bool [time, batch]."""
    return tf.transpose(tf.sequence_mask(lengths, maxlen, **others))


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


def matrix_triangular(shape: Sequence[Any], dtype: Any = "float32", lower: bool = False, upper: bool = False) -> Any:
    """Return ones on the diagonal and below (lower) or above (upper) it, else zeros.

    :param shape: [..., rows, columns]
    """
    if lower == upper:
        raise TypeError("matrix_triangular: give either lower=True or upper=True")
    return tf.linalg.band_part(tf.ones(shape, dtype), -1 if lower else 0, 0 if lower else -1)


def get_shared_vocab(vocab_strings: Sequence[str]) -> Any:
    """Return the labels as a string tensor [labels]."""
    return tf.constant(numpy.asarray(vocab_strings, dtype=object), dtype=tf.string)
