"""Random feeds for any network: ragged lengths, random numbers in the padding too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.compiler.feed import feed_layout
from returnn_tf.tensor import Data, Dim


def random_feed(
    extern_data: Mapping[str, Data],
    batch: int = 3,
    longest: int = 6,
    seed: int = 1,
    lengths: Optional[Sequence[int]] = None,
) -> dict[str, Any]:
    """Return a feed with lengths ``longest, longest - 2, ...`` (at least 1) for every dynamic dim; equal dims get equal
    lengths.

    :param lengths: those of the sequences, in place of ``batch`` and ``longest``
    """
    rng = np.random.default_rng(seed)
    if lengths is None:
        lengths = [max(longest - 2 * i, 1) for i in range(batch)]
    batch, longest, lens = len(lengths), max(lengths, default=0), np.array(lengths, "int32")
    feed: dict[str, Any] = {}
    lens_of: dict[Dim, np.ndarray] = {}
    for key, data in extern_data.items():
        sizes, _ = feed_layout(data)
        order = list(range(data.rank))
        if data.batch_axis is not None:
            order.insert(0, order.pop(data.batch_axis))
        shape = []
        for i, (axis, size) in enumerate(zip(order, sizes)):
            dim = data.dims[axis]
            if size is not None:
                shape.append(size)
            elif dim.is_batch:
                shape.append(batch)
            else:
                lens_of.setdefault(dim, lens)
                shape.append(longest)
                feed["%s/size%d" % (key, i - (1 if data.batch_axis is not None else 0))] = lens_of[dim]
        if data.sparse_dim is not None:
            feed[key] = rng.integers(0, data.sparse_dim.size or 2, shape).astype(data.dtype)
        elif data.dtype == "string":
            feed[key] = np.full(shape, "a", object)
        elif data.dtype == "bool":
            feed[key] = rng.integers(0, 2, shape).astype(bool)
        elif data.dtype.startswith("int"):
            feed[key] = rng.integers(0, 3, shape).astype(data.dtype)
        else:
            feed[key] = _normal(data, shape, rng)
    return feed


def repadded(
    feed: Mapping[str, Any], extern_data: Mapping[str, Data], *, more: int = 0, seed: int = 7
) -> dict[str, Any]:
    """Return the same sequences with other padding: large random numbers or other labels, and `more` further frames."""
    rng = np.random.default_rng(seed)
    result = dict(feed)
    for key, data in extern_data.items():
        old = np.asarray(feed[key])
        offset = 0 if data.batch_axis is None else 1
        axes = {i + offset: feed["%s/size%d" % (key, i)] for i in feed_layout(data)[1]}
        shape = [size + more if axis in axes else size for axis, size in enumerate(old.shape)]
        inside = np.zeros(shape, bool)
        inside[tuple(slice(size) for size in old.shape)] = True
        for axis, lens in axes.items():
            frames = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(old.ndim)])
            inside &= frames < np.reshape(lens, [-1] + [1] * (old.ndim - 1))
        new = _garbage(data, shape, rng)
        old_inside = inside[tuple(slice(size) for size in old.shape)]
        new[inside] = old[old_inside]
        result[key] = new
    return result


def _garbage(data: Data, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    if data.sparse_dim is not None:
        return rng.integers(0, data.sparse_dim.size or 2, shape).astype(data.dtype)
    if data.dtype == "bool" or data.dtype.startswith("int"):
        return rng.integers(0, 2, shape).astype(data.dtype)
    if data.dtype == "string":
        return np.full(shape, "", object)
    return 50 * _normal(data, shape, rng)


def _normal(data: Data, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    values = rng.normal(size=shape)
    if data.dtype.startswith("complex"):
        values = values + 1j * rng.normal(size=shape)
    return values.astype(data.dtype)
