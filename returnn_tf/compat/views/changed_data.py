"""Templates that user code describes or changes attribute by attribute: shape, dim, and places of the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.errors import CodeError
from returnn_tf.tensor import DTYPES, Data, Dim, DimKind, batch_dim
from returnn_tf.tensor.data import default_feature_axis, default_time_axis

#: The attributes that can be set.
ATTRIBUTES = ("shape", "dim", "dtype", "sparse", "batch_dim_axis", "time_dim_axis", "feature_dim_axis")


def changed_data(data: Data, changes: Mapping[str, Any], name: str) -> Data:
    """Return a template with some attributes changed.

    A size in ``shape`` keeps the dim of its place, else any dim of that size; the others are new.

    :param changes: some of `ATTRIBUTES`; ``shape`` does not count batch, the axes do
    :param name: for the descriptions of new dims
    :raises ConfigError: they contradict each other
    """
    dtype = changes.get("dtype", data.dtype)
    dtype = getattr(dtype, "name", dtype)
    if dtype not in DTYPES:
        raise CodeError("the dtype %r is unknown. Write e.g. 'float32'." % (dtype,))
    sparse = changes.get("sparse", data.sparse)
    feature_axis = data.feature_axis
    old = [dim for dim in data.dims if not dim.is_batch]
    if "shape" in changes:
        dims = _dims_of_shape(old, changes["shape"], name)
    else:
        dims = list(old)
        if not sparse and changes.get("dim") is not None and feature_axis is not None:
            feature = data.dims[feature_axis]
            if feature.size != changes["dim"]:
                dims[old.index(feature)] = Dim(DimKind.FEATURE, changes["dim"], name + ":feature", auto=True)
    batch = next((dim for dim in data.dims if dim.is_batch), batch_dim)
    batch_axis = changes.get("batch_dim_axis", data.batch_axis)
    if batch_axis is not None:
        dims.insert(_index(batch_axis, len(dims) + 1, "batch_dim_axis"), batch)
    sparse_dim = _sparse_dim(data, changes, sparse, name)
    result = Data(tuple(dims), dtype, sparse_dim=sparse_dim, beam=data.beam, vocab=data.vocab)
    time_axis = _mark(result, changes, "time_dim_axis", data.time_dim, default_time_axis(dims))
    by_default = None if sparse else default_feature_axis(dims, time_axis)
    feature_axis = _mark(result, changes, "feature_dim_axis", None if sparse else data.feature_dim, by_default)
    if changes.get("dim", 0) is None and "feature_dim_axis" not in changes:
        feature_axis = None
    return result.replace(time_axis=time_axis, feature_axis=feature_axis)


def _dims_of_shape(old: Sequence[Dim], shape: Any, name: str) -> list[Dim]:
    if not isinstance(shape, (list, tuple)) or not all(
        size is None or (isinstance(size, int) and size > 0) for size in shape
    ):
        raise CodeError("the shape must be a tuple of sizes without batch, None where dynamic, got %r." % (shape,))
    free = list(old)
    dims: list[Optional[Dim]] = [None] * len(shape)
    if len(shape) == len(old):
        for i, (size, dim) in enumerate(zip(shape, old)):
            if dim.size == size:
                dims[i] = dim
                free.remove(dim)
    for i, size in enumerate(shape):
        if dims[i] is None:
            dims[i] = next((dim for dim in free if dim.size == size), None)
            if dims[i] is not None:
                free.remove(dims[i])  # type: ignore[arg-type]
    last = len(shape) - 1
    for i, size in enumerate(shape):
        if dims[i] is None:
            kind = DimKind.FEATURE if i == last and size is not None else DimKind.SPATIAL
            dims[i] = Dim(kind, size, "%s:%d" % (name, i), auto=True)
    return [dim for dim in dims if dim is not None]


def _sparse_dim(data: Data, changes: Mapping[str, Any], sparse: Any, name: str) -> Optional[Dim]:
    if not sparse:
        return None
    size = changes.get("dim", data.dim)
    if data.sparse_dim is not None and data.sparse_dim.size == size:
        return data.sparse_dim
    return Dim(DimKind.FEATURE, size, name + ":labels", auto=True)


def _index(axis: Any, rank: int, what: str) -> int:
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise CodeError("%s is %r, but there are %d axes." % (what, axis, rank))
    return axis % rank


def _mark(data: Data, changes: Mapping[str, Any], what: str, before: Optional[Dim], default: Any) -> Optional[int]:
    """Return the index of the time or feature axis: as given, else that of the dim that it was, else the default."""
    if what in changes:
        axis = changes[what]
        if axis is None:
            return None
        axis = _index(axis, data.rank, what)
        if data.dims[axis].is_batch:
            raise CodeError("%s is %d, but that is the batch axis. Set batch_dim_axis, too." % (what, axis))
        return axis
    if before is not None and before in data.dims:
        return data.dims.index(before)
    return default if isinstance(default, int) else None
