"""Padding of axes, at the array borders or directly after the end of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from returnn_tf.ops.frames.shape import expand_at, size_of
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


def _reflect(index: Any, size: Any) -> Any:
    index = tf.abs(index)
    return (size - 1) - tf.abs((size - 1) - index)


def _symmetric(index: Any, size: Any) -> Any:
    index = tf.where(index < 0, -1 - index, index)
    return tf.where(index >= size, 2 * size - 1 - index, index)


#: mode -> function (index, size) -> index inside of [0, size), for indices beyond the borders
_INDEX_OF: dict[str, Callable[[Any, Any], Any]] = {
    "reflect": _reflect,
    "symmetric": _symmetric,
    "replication": lambda index, size: index,
}
MODES = ("constant", *_INDEX_OF)


def pad_array(x: Any, left: Sequence[Any], right: Sequence[Any], value: Any = 0) -> Any:
    """Pad an array with a constant.

    :param left: per axis how many entries before, ints or scalars
    :param right: per axis how many entries after
    """
    paddings = tf.stack([tf.stack([tf.cast(a, tf.int32), tf.cast(b, tf.int32)]) for a, b in zip(left, right)])
    return _constant(x, paddings, value)


def _constant(x: Any, paddings: Any, value: Any) -> Any:
    """Pad with a constant; 0 is the empty string among strings.

    Masks go by numbers: the op for bools has no counterpart in ONNX and TFLite.
    """
    if x.dtype == tf.bool:
        return tf.cast(tf.pad(tf.cast(x, tf.int32), paddings, constant_values=tf.cast(value, tf.int32)), tf.bool)
    if x.dtype == tf.string:
        return tf.pad(x, paddings, constant_values=value or "")
    return tf.pad(x, paddings, constant_values=tf.cast(value, x.dtype))


def pad_axis(x: Any, axis: int, left: Any, right: Any, value: Any = 0, *, mode: str = "constant") -> Any:
    """Pad one axis at the array borders; with a constant this works for every dtype.

    :param mode: constant; reflect (without the border entry), symmetric (with it), replication (of the border entry)
    """
    if isinstance(left, int) and isinstance(right, int) and left == right == 0:
        return x
    if mode == "constant":
        paddings = [[0, 0]] * axis + [[left, right]] + [[0, 0]] * (x.shape.rank - axis - 1)
        return _constant(x, paddings, value)
    size = size_of(x, axis)
    index = _INDEX_OF[mode](tf.range(-left, size + right), size)
    return tf.gather(x, tf.clip_by_value(index, 0, size - 1), axis=axis)


def pad_sequences(x: Any, lens: Any, left: int, right: int, *, mode: str = "constant", value: Any = 0) -> Any:
    """Pad every sequence on both sides; the right padding directly follows its last frame.

    :param x: [batch, time, ...]
    :param lens: int32 [batch]
    :return: [batch, left + time + right, ...]; frames after the right padding are arbitrary
    """
    lens = tf.expand_dims(lens, 1)
    index = tf.expand_dims(tf.range(-left, size_of(x, 1) + right), 0)
    if mode == "constant":
        inside = tf.logical_and(index >= 0, index < lens)
        x = pad_axis(x, 1, left, right)
        return tf.where(expand_at(inside, range(2, x.shape.rank)), x, tf.cast(value, x.dtype))
    index = _INDEX_OF[mode](index, lens)
    return tf.gather(x, tf.clip_by_value(index, 0, tf.maximum(lens - 1, 0)), batch_dims=1)


def fit_axis(x: Any, axis: int, size: Any) -> Any:
    """Cut or zero-pad an axis at the end to a size."""
    x = pad_axis(x, axis, 0, tf.maximum(size - tf.shape(x)[axis], 0))
    return x[(slice(None),) * axis + (slice(0, size),)]


def fit_dims(x: Any, data: Data, into: Data, size_of: Callable[[Dim], Any]) -> Any:
    """Cut or zero-pad the axes whose dims differ between two templates.

    :param x: tensor with the axes of ``data``
    """
    for axis, (dim, new) in enumerate(zip(data.dims, into.dims)):
        if dim is not new and dim.is_dynamic():
            x = fit_axis(x, axis, size_of(new))
    return x
