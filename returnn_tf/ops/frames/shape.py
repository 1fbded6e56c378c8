"""Layout of tensors: conversion between the axes of two templates, and masks of valid frames."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


def to_layout(x: Any, data: Data, into: Data, mapping: Optional[Sequence[Optional[int]]] = None) -> Any:
    """Transpose and expand so that the tensor broadcasts against the layout.

    :param x: tensor with the axes of ``data``
    :param mapping: axis of ``data`` -> axis of ``into``; found by dim if not given. Axes of size 1 without one are
        dropped.
    :return: tensor of the rank of ``into``, size 1 where ``data`` has no such axis
    """
    mapping = match_axes(data, into) if mapping is None else mapping
    gone = [a for a, target in enumerate(mapping) if target is None]
    if gone:
        x = tf.squeeze(x, axis=gone)
    kept = [target for target in mapping if target is not None]
    order = sorted(range(len(kept)), key=lambda i: kept[i])
    return expand_at(transpose(x, order), [t for t in range(into.rank) if t not in kept])


def expand_at(x: Any, axes: Sequence[int]) -> Any:
    """Insert axes of size 1 at these indices of the result, ascending."""
    for axis in axes:
        x = tf.expand_dims(x, axis)
    return x


def transpose(x: Any, perm: Sequence[int]) -> Any:
    """Transpose, without an op if the order is unchanged, and by one op if another one just changed it."""
    before, perm = _transposed(x), list(perm)
    if before is not None:
        x, perm = before[0], [before[1][axis] for axis in perm]
    return x if perm == list(range(len(perm))) else tf.transpose(x, perm)


def _transposed(x: Any) -> Optional[tuple[Any, list[int]]]:
    """Return the tensor and the order of axes from which an op made x, here or before a loop; None if none did."""
    if getattr(x, "graph", None) is None or x.op.type != "Transpose":
        return None
    perm = tf.get_static_value(x.op.inputs[1])
    return None if perm is None else (x.op.inputs[0], perm.tolist())


def move_axis(x: Any, rank: int, source: int, target: int) -> Any:
    """Move one axis; the others keep their order."""
    return transpose(x, moved_axis_perm(rank, source, target))


def moved_axis_perm(rank: int, source: int, target: int) -> list[int]:
    """Return the permutation that moves one axis."""
    perm = [i for i in range(rank) if i != source]
    perm.insert(target, source)
    return perm


def size_of(x: Any, axis: int) -> Any:
    """Return the size of an axis: an int where it is static, else a scalar tensor."""
    static = x.shape[axis] if x.shape.rank is not None else None
    return tf.shape(x)[axis] if static is None else static


def sizes_of(x: Any) -> list[Any]:
    """Return `size_of` of all axes."""
    dynamic = None
    result: list[Any] = []
    for axis, static in enumerate(x.shape.as_list()):
        if static is None and dynamic is None:
            dynamic = tf.shape(x)
        result.append(dynamic[axis] if static is None else static)  # type: ignore[index]
    return result


def with_sizes(x: Any, sizes: Sequence[Optional[int]]) -> Any:
    """Tell what sizes the axes have, where TensorFlow loses them, by an op that every format of graphs has.

    ``tf.ensure_shape`` has no form in TFLite; what ``set_shape`` and ``tf.pad`` tell is lost when a graph is saved.

    :param x: tensor of this rank
    :param sizes: None where a size is unknown
    """
    known = x.shape.as_list() if x.shape.rank is not None else [None] * len(sizes)
    sizes = [size if other is None else other for size, other in zip(sizes, known)]
    dynamic, parts, axis = tf.shape(x), [], 0
    for is_known, run in itertools.groupby(sizes, lambda size: size is not None):  # TFLite's converter follows slices
        given = list(run)
        parts.append(tf.constant(given, tf.int32) if is_known else dynamic[axis : axis + len(given)])
        axis += len(given)
    return tf.reshape(x, tf.concat(parts, axis=0) if len(parts) > 1 else parts[0])


def merge_axes(x: Any, first: int, count: int) -> tuple[Any, Any]:
    """Merge neighbouring axes.

    :param first: index of the first of them
    :return: (tensor, size of the merged axis: an int if it is static)
    """
    sizes = sizes_of(x)
    merged: Any = 1
    for size in sizes[first : first + count]:
        merged = merged * size
    return reshape(x, sizes[:first] + [merged] + sizes[first + count :]), merged


def split_axis(x: Any, axis: int, sizes: Sequence[Any]) -> Any:
    """Split one axis into several, whose sizes must multiply to its size."""
    before = sizes_of(x)
    return reshape(x, before[:axis] + list(sizes) + before[axis + 1 :])


def reshape(x: Any, sizes: Sequence[Any]) -> Any:
    """Reshape; to a constant shape if all sizes but one are known, since the ops that put it together count in a loop.

    :param sizes: ints, and scalar tensors
    """
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes) - 1 and 0 not in known:
        return tf.reshape(x, [size if isinstance(size, int) else -1 for size in sizes])
    return tf.reshape(x, list(sizes))
