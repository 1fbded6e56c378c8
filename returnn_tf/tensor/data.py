"""`Data`: the template of a layer output. Dims in order, dtype, time and feature axis; no tensor.

Axis descriptions by name (``"T"``, ``"stag:window"``, ``"dim:3"``, ...) are resolved in `returnn_tf.tensor.axes`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

from returnn_tf.tensor.dim import Dim, DimKind
from returnn_tf.util.html import paragraph, table

#: Names of the dtypes of tensors.
NUMERIC_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
)  # fmt: skip
DTYPES = (*NUMERIC_DTYPES, "string")

_UNSET: Any = object()


@dataclasses.dataclass(frozen=True)
class Beam:
    """Hypotheses of a search that share the batch axis, index ``b * size + k``, best first.

    :param size: hypotheses per sequence
    :param of: path of the loop that searched
    """

    size: int
    of: str


@dataclasses.dataclass(frozen=True)
class Data:
    """Template of a tensor.

    :param dims: all dims in order, batch included; the same dim may occur twice
    :param dtype: numpy name, e.g. "float32"; "float32" unless given
    :param feature_axis: index of the feature axis, or None
    :param time_axis: index of the axis denoted by ``"T"``, or None
    :param sparse_dim: if the entries are label indices: the dim they index
    :param beam: the search whose hypotheses are part of the batch axis, or None
    :param vocab: label names, if known
    :param version: 2: axes become time and feature axis only where a layer marks them, not by default
    :param unknown: only while a loop is planned: nothing is known yet about the value of the previous step
    """

    dims: tuple[Dim, ...]
    dtype: str = "float32"
    feature_axis: Optional[int] = None
    time_axis: Optional[int] = None
    sparse_dim: Optional[Dim] = None
    beam: Optional[Beam] = None
    vocab: Any = None
    version: int = 1
    unknown: bool = False

    @classmethod
    def from_dims(
        cls,
        dims: Iterable[Dim],
        *,
        dtype: str = "float32",
        sparse_dim: Optional[Dim] = None,
        feature_axis: Optional[int] = _UNSET,
        time_axis: Optional[int] = _UNSET,
        **kwargs: Any,
    ) -> Data:
        """Return a template with default time and feature axes where these are not given.

        Time is the first dynamic spatial axis. Feature (dense data only) is the last axis of feature kind, else the
        last static axis other than batch and time, else the last dynamic one.
        """
        dims = tuple(dims)
        if time_axis is _UNSET:
            time_axis = default_time_axis(dims)
        if feature_axis is _UNSET:
            feature_axis = None if sparse_dim is not None else default_feature_axis(dims, time_axis)
        return cls(dims, dtype, feature_axis, time_axis, sparse_dim, **kwargs)

    # --- axes ---

    @property
    def rank(self) -> int:
        """Return the number of axes, batch included."""
        return len(self.dims)

    @property
    def batch_axis(self) -> Optional[int]:
        """Return the index of the batch axis, or None."""
        return next((i for i, d in enumerate(self.dims) if d.is_batch), None)

    @property
    def sparse(self) -> bool:
        """Return whether the entries are label indices."""
        return self.sparse_dim is not None

    @property
    def feature_dim(self) -> Optional[Dim]:
        """Return the dim of the feature axis, or None."""
        return None if self.feature_axis is None else self.dims[self.feature_axis]

    @property
    def time_dim(self) -> Optional[Dim]:
        """Return the dim of the time axis, or None."""
        return None if self.time_axis is None else self.dims[self.time_axis]

    @property
    def dim(self) -> Optional[int]:
        """Return the number of labels if sparse, else the static size of the feature axis, or None."""
        d = self.sparse_dim or self.feature_dim
        return None if d is None else d.size

    @property
    def spatial_axes(self) -> list[int]:
        """Return the indices of all axes but batch and feature (and the steps of a loop)."""
        return [i for i, d in enumerate(self.dims) if not d.is_batch and not d.is_loop and i != self.feature_axis]

    @property
    def dynamic_axes(self) -> list[int]:
        """Return the indices of the axes without static size, batch excluded."""
        return [i for i, d in enumerate(self.dims) if d.is_dynamic()]

    @property
    def loop_axes(self) -> list[int]:
        """Return the indices of the axes that are steps of a loop, see `DimKind.LOOP`."""
        return [i for i, d in enumerate(self.dims) if d.is_loop]

    @property
    def axis_kinds(self) -> tuple[str, ...]:
        """Return the kind of each axis: "B" batch, "F" feature, "T" dynamic spatial, "S" static spatial."""
        return tuple(self._kind(i) for i in range(self.rank))

    def _kind(self, axis: int) -> str:
        if self.dims[axis].is_batch:
            return "B"
        if axis == self.feature_axis:
            return "F"
        return "T" if self.dims[axis].is_dynamic() else "S"

    @property
    def static_shape(self) -> tuple[Optional[int], ...]:
        """Return the size of each axis, None where dynamic."""
        return tuple(d.size for d in self.dims)

    def axis_of_steps(self, dim: Dim) -> Optional[int]:
        """Return the axis of the steps of a loop, seen from inside or from outside of it; None without one.

        :param dim: of the steps inside; any other dim is that of the axis itself
        """
        found = (i for i, d in enumerate(self.dims) if d is dim or (dim.is_loop and d.as_kind(DimKind.LOOP) is dim))
        return next(found, None)

    def axes_of(self, dim: Dim, without: Sequence[int] = ()) -> list[int]:
        """Return the indices of all axes with this dim; of those that differ in match priority, the highest.

        Of axes with the dim in several priorities, a dim with a priority means the axis of this priority, if any.

        :param without: axes that don't count
        """
        base = dim.unprioritized()
        found = [i for i, d in enumerate(self.dims) if d is base or d.without_priority is base]
        if without:
            found = [i for i in found if i not in without]
        if len(found) < 2:
            return found
        same = [i for i in found if self.dims[i] is dim] if dim.match_priority else []
        highest = max(self.dims[i].match_priority for i in found)
        return same or [i for i in found if self.dims[i].match_priority == highest]

    def __str__(self) -> str:
        parts = []
        for i, d in enumerate(self.dims):
            kind = self._kind(i)
            parts.append("B" if kind == "B" and d.description == "batch" else "%s|%s" % (kind, d))
        text = "[%s] %s" % (", ".join(parts), self.dtype)
        return text + " sparse %s" % self.sparse_dim if self.sparse_dim is not None else text

    def _repr_html_(self) -> str:
        marks = {self.feature_axis: "feature", self.time_axis: "time", self.batch_axis: "batch"}
        rows = [
            (axis, marks.get(axis, ""), self._kind(axis), dim, "dynamic" if dim.size is None else dim.size)
            for axis, dim in enumerate(self.dims)
        ]
        labels = "" if self.sparse_dim is None else ", labels %s" % self.sparse_dim
        return paragraph(self.dtype + labels) + table(("axis", "role", "kind", "dim", "size"), rows, numbers=[0])

    # --- derived templates ---

    def replace(self, **changes: Any) -> Data:
        """Return a copy with some fields replaced."""
        return Data(**{**vars(self), **changes})  # `dataclasses.replace` takes twice the time

    def permuted(self, perm: Sequence[int]) -> Data:
        """Permute axes: axis ``i`` of the result is axis ``perm[i]`` of this one; time and feature marks move along."""
        where = {old: new for new, old in enumerate(perm)}
        return self.replace(
            dims=tuple(self.dims[i] for i in perm),
            feature_axis=None if self.feature_axis is None else where[self.feature_axis],
            time_axis=None if self.time_axis is None else where[self.time_axis],
        )

    def without_axes(self, axes: Iterable[int]) -> Data:
        """Remove axes together with their marks."""
        gone = set(axes)
        keep = [i for i in range(self.rank) if i not in gone]
        where = {old: new for new, old in enumerate(keep)}
        return self.replace(
            dims=tuple(self.dims[i] for i in keep),
            feature_axis=None if self.feature_axis is None else where.get(self.feature_axis),
            time_axis=None if self.time_axis is None else where.get(self.time_axis),
        )

    def with_axis(self, axis: int, dim: Dim, *, feature: bool = False, time: bool = False) -> Data:
        """Insert an axis before the one at this index; optionally marked as feature or time."""

        def moved(i: Optional[int]) -> Optional[int]:
            return i if i is None or i < axis else i + 1

        return self.replace(
            dims=self.dims[:axis] + (dim,) + self.dims[axis:],
            feature_axis=axis if feature else moved(self.feature_axis),
            time_axis=axis if time else moved(self.time_axis),
        )

    def with_dim(self, axis: int, dim: Dim) -> Data:
        """Replace the dim of one axis, keeping marks."""
        return self.replace(dims=self.dims[:axis] + (dim,) + self.dims[axis + 1 :])

    def map_dims(self, func: Callable[[Dim], Dim]) -> Data:
        """Replace every dim by ``func(dim)``, also that of the labels."""
        sparse_dim = None if self.sparse_dim is None else func(self.sparse_dim)
        return self.replace(dims=tuple(map(func, self.dims)), sparse_dim=sparse_dim)

    def with_feature(self, axis: int, dim: Dim) -> Data:
        """Turn an axis into the feature axis; an earlier feature axis becomes a plain static one."""
        return self.with_dim(axis, dim).replace(
            feature_axis=axis, sparse_dim=None, time_axis=None if self.time_axis == axis else self.time_axis
        )

    def with_time_axis_default(self) -> Data:
        """Set the time mark by the default rule, unless it is set."""
        if self.time_axis is not None or self.version == 2:
            return self
        return self.replace(time_axis=default_time_axis(self.dims, exclude=self.feature_axis))


def default_time_axis(dims: Sequence[Dim], exclude: Optional[int] = None) -> Optional[int]:
    """Return the first dynamic spatial axis."""
    for i, d in enumerate(dims):
        if d.is_dynamic() and d.kind is DimKind.SPATIAL and i != exclude:
            return i
    return None


def default_feature_axis(dims: Sequence[Dim], time_axis: Optional[int]) -> Optional[int]:
    """Return the last axis of feature kind, else the last one besides batch and time, a static one if there is any."""
    of_kind = [i for i, d in enumerate(dims) if d.kind is DimKind.FEATURE]
    if of_kind:
        return of_kind[-1]
    others = [i for i, d in enumerate(dims) if not (d.is_batch or d.is_loop) and i != time_axis]
    static = [i for i in others if dims[i].size is not None]
    candidates = static or others
    return candidates[-1] if candidates else None
