"""A template whose attributes user code reads and sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.errors import CodeError, ConfigError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.tensor import DTYPES, Beam, Data, Dim, DimKind, batch_dim
from returnn_tf.tensor.data import default_feature_axis, default_time_axis


class TemplateView:
    """A template that user code reads and changes attribute by attribute.

    :param ctx: of the layer that the code is part of; None while the network is planned
    """

    def __init__(self, data: Data, ctx: Optional[EmitContext] = None, name: str = "data") -> None:
        self._data = data
        self._ctx = ctx
        self._changes: dict[str, Any] = {}
        #: Lengths of the user's own, by dim.
        self.own_lengths: dict[Dim, Any] = {}
        self.name = name

    @property
    def template(self) -> Data:
        """Return the template, with all changes.

        :raises ConfigError: they contradict each other
        """
        if self._changes:
            try:
                self._data = changed_data(self._data, self._changes, self.name)
            except ConfigError as exc:
                raise CodeError("%r: %s" % (self.name, exc)) from None
            self._changes = {}
        return self._data

    def change(self, **changes: Any) -> None:
        """Set attributes; they take effect together, when the template is next asked for as a whole."""
        self._changes.update(changes)

    def error(self, message: str) -> ConfigError:
        """Return an error that names the template."""
        return CodeError("%r %s %s" % (self.name, self.template, message))

    # --- attributes ---

    @property
    def dtype(self) -> str:
        """Return the numpy name of the dtype."""
        return self.template.dtype

    @dtype.setter
    def dtype(self, value: Any) -> None:
        self.change(dtype=value)

    @property
    def dim(self) -> Optional[int]:
        """Return the number of features, or of labels if sparse."""
        if "dim" not in self._changes:
            return self.template.dim
        value: Optional[int] = self._changes["dim"]
        return value

    @dim.setter
    def dim(self, value: Optional[int]) -> None:
        self.change(dim=value)

    @property
    def sparse(self) -> bool:
        """Return whether the entries are label indices."""
        return bool(self._changes.get("sparse", self._data.sparse))

    @sparse.setter
    def sparse(self, value: bool) -> None:
        self.change(sparse=value)

    @property
    def shape(self) -> tuple[Optional[int], ...]:
        """Return the size of each axis but batch, None where dynamic."""
        if "shape" in self._changes:
            return tuple(self._changes["shape"])
        return tuple(dim.size for dim in self.template.dims if not dim.is_batch)

    @shape.setter
    def shape(self, value: Any) -> None:
        self.change(shape=value)

    @property
    def batch_dim_axis(self) -> Optional[int]:
        """Return the index of the batch axis."""
        axis: Optional[int] = self._changes.get("batch_dim_axis", self._data.batch_axis)
        return axis

    @batch_dim_axis.setter
    def batch_dim_axis(self, value: Optional[int]) -> None:
        self.change(batch_dim_axis=value)

    @property
    def time_dim_axis(self) -> Optional[int]:
        """Return the index of the time axis."""
        if "time_dim_axis" not in self._changes:
            return self.template.time_axis
        value: Optional[int] = self._changes["time_dim_axis"]
        return value

    @time_dim_axis.setter
    def time_dim_axis(self, value: Optional[int]) -> None:
        self.change(time_dim_axis=value)

    @property
    def feature_dim_axis(self) -> Optional[int]:
        """Return the index of the feature axis."""
        if "feature_dim_axis" not in self._changes:
            return self.template.feature_axis
        value: Optional[int] = self._changes["feature_dim_axis"]
        return value

    @feature_dim_axis.setter
    def feature_dim_axis(self, value: Optional[int]) -> None:
        self.change(feature_dim_axis=value)

    @property
    def beam(self) -> Optional[Beam]:
        """Return the hypotheses of a search in the batch axis, or None."""
        return self.template.beam

    @beam.setter
    def beam(self, value: Optional[Beam]) -> None:
        self._data = self.template.replace(beam=value)

    @property
    def vocab(self) -> Any:
        """Return the label names, or None."""
        return self.template.vocab

    @vocab.setter
    def vocab(self, value: Any) -> None:
        self._data = self.template.replace(vocab=value)

    @property
    def sparse_dim(self) -> Optional[Dim]:
        """Return the dim of the labels, or None."""
        return self.template.sparse_dim

    # --- derived ---

    @property
    def dim_tags(self) -> tuple[Dim, ...]:
        """Return the dims in order."""
        return self.template.dims

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Return the dims in order."""
        return self.template.dims

    @property
    def dims_set(self) -> set[Dim]:
        """Return the dims."""
        return set(self.template.dims)

    @property
    def batch_shape(self) -> tuple[Optional[int], ...]:
        """Return the size of each axis, None where dynamic."""
        return self.template.static_shape

    @property
    def batch_shape_dense(self) -> tuple[Optional[int], ...]:
        """Return `batch_shape`, with the number of labels at the end if sparse."""
        return self.batch_shape + ((self.dim,) if self.sparse else ())

    @property
    def shape_dense(self) -> tuple[Optional[int], ...]:
        """Return `shape`, with the number of labels at the end if sparse."""
        return self.shape + ((self.dim,) if self.sparse else ())

    @property
    def shape_sparse(self) -> tuple[Optional[int], ...]:
        """Return `shape` without the feature axis."""
        data = self.template
        return tuple(d.size for i, d in enumerate(data.dims) if not d.is_batch and i != data.feature_axis)

    @property
    def batch_ndim(self) -> int:
        """Return the number of axes, batch included."""
        return self.template.rank

    @property
    def ndim(self) -> int:
        """Return the number of axes without batch."""
        return len(self.shape)

    @property
    def ndim_dense(self) -> int:
        """Return `ndim`, one more if sparse."""
        return self.ndim + self.sparse

    @property
    def batch_ndim_dense(self) -> int:
        """Return `batch_ndim`, one more if sparse."""
        return self.batch_ndim + self.sparse

    @property
    def is_batch_major(self) -> bool:
        """Return whether batch is the first axis."""
        return self.batch_dim_axis == 0

    @property
    def is_time_major(self) -> bool:
        """Return whether time is the first axis."""
        return self.time_dim_axis == 0

    @property
    def is_batch_feature_major(self) -> bool:
        """Return whether batch is the first and feature the second axis."""
        return self.batch_dim_axis == 0 and self.feature_dim_axis == 1


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
