"""A ragged batch of random numbers for any network, with which an exported graph is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.tensor import Data, Dim


def random_batch(
    extern_data: Mapping[str, Data],
    keys: Sequence[str],
    *,
    seed: int = 1,
    batch: int = 3,
    frames: int = 13,
    shorter: int = 5,
) -> dict[str, NDArray[Any]]:
    """Return random sequences, in the names of a feed: "<key>" and "<key>/size<i>".

    The first sequence is the longest.

    :param batch: number of sequences
    :param frames: length of the longest one
    :param shorter: by how many frames the sequences of each further dim are shorter: labels are fewer than frames
    """
    rng = np.random.RandomState(seed)
    lens_of: dict[Dim, NDArray[Any]] = {}
    feed: dict[str, NDArray[Any]] = {}
    for key in keys:
        data = extern_data[key]
        offset = 0 if data.batch_axis is None else 1
        shape: list[int] = []
        for place, axis in enumerate(batch_major_order(data)):
            dim = data.dims[axis]
            if dim.size is None and not dim.is_batch:
                lens = _lens(dim, lens_of, batch, frames - shorter * len(lens_of))
                feed["%s/size%d" % (key, place - offset)] = lens
                shape.append(int(lens.max()))
            else:
                shape.append(batch if dim.size is None else dim.size)
        feed[key] = _values(data, shape, rng)
    return feed


def _lens(dim: Dim, known: dict[Dim, NDArray[Any]], batch: int, frames: int) -> NDArray[Any]:
    if dim not in known:
        known[dim] = np.maximum(max(frames, 2) - 2 * np.arange(batch), 1).astype("int32")
    return known[dim]


def _values(data: Data, shape: Sequence[int], rng: Any) -> NDArray[Any]:
    kind = np.dtype(object if data.dtype == "string" else data.dtype)
    if kind.kind == "O":
        return np.full(shape, b"a", object)
    if data.sparse_dim is not None or kind.kind in "iub":
        most = 2 if data.sparse_dim is None or data.sparse_dim.size is None else data.sparse_dim.size
        return np.asarray(rng.randint(0, most, shape)).astype(kind)
    values = rng.normal(0, 1, shape)
    return np.asarray(values + (1j * rng.normal(0, 1, shape) if kind.kind == "c" else 0)).astype(kind)
