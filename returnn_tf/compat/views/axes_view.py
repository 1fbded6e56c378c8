"""A template with its axes by name, and their lengths, for user code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compat.views import size_tags
from returnn_tf.compat.views.size_tags import LengthsOf, dim_of_lengths, lengths_with_dim
from returnn_tf.compat.views.template_view import TemplateView
from returnn_tf.tensor import Dim, resolve_axes, resolve_axis
from returnn_tf.util.lazy_tf import tf


class AxesView(TemplateView):
    """A template with its axes by name. Indices of axes count batch unless the name says otherwise."""

    def have_batch_axis(self) -> bool:
        """Return whether there is a batch axis."""
        return self.batch_dim_axis is not None

    def have_time_axis(self) -> bool:
        """Return whether there is a time axis."""
        return self.time_dim_axis is not None

    def have_feature_axis(self) -> bool:
        """Return whether there is a feature axis."""
        return self.feature_dim_axis is not None

    def have_dim_tag(self, tag: Dim) -> bool:
        """Return whether one of the axes has this dim."""
        return tag in self.template.dims

    def is_time_axis_dynamic(self) -> bool:
        """Return whether the lengths of the time axis differ between sequences."""
        return self.template.time_axis in self.template.dynamic_axes

    def is_axis_dynamic(self, axis: int) -> bool:
        """Return whether the lengths of an axis differ between sequences."""
        return axis % self.batch_ndim in self.template.dynamic_axes

    def has_dynamic_size(self, axis: int) -> bool:
        """Return whether the lengths of an axis differ between sequences."""
        return self.is_axis_dynamic(axis)

    # --- indices

    @property
    def time_dim_axis_excluding_batch(self) -> Optional[int]:
        """Return the index of the time axis, not counting batch."""
        axis = self.time_dim_axis
        return None if axis is None else self.get_batch_axis_excluding_batch(axis)

    def get_batch_axis_excluding_batch(self, axis: int) -> Optional[int]:
        """Return the index of an axis when batch is not counted; None for batch itself."""
        batch, axis = self.batch_dim_axis, axis % self.batch_ndim
        if batch is None or axis < batch:
            return axis
        return None if axis == batch else axis - 1

    def get_batch_axis(self, axis: int) -> int:
        """Return the index of an axis when batch is counted."""
        batch, axis = self.batch_dim_axis, axis % self.ndim
        return axis if batch is None or axis < batch else axis + 1

    def get_axes(self, exclude_time: bool = False, exclude_batch: bool = False) -> list[int]:
        """Return the indices of all axes."""
        gone = {self.time_dim_axis if exclude_time else None, self.batch_dim_axis if exclude_batch else None}
        return [axis for axis in range(self.batch_ndim) if axis not in gone]

    def get_dynamic_axes(self) -> list[int]:
        """Return the indices of the axes whose lengths differ between sequences."""
        return self.template.dynamic_axes

    def get_static_axes(self) -> list[int]:
        """Return the indices of the axes of static size."""
        return [axis for axis, dim in enumerate(self.template.dims) if dim.size is not None]

    def get_spatial_batch_axes(self) -> list[int]:
        """Return the indices of all axes but batch and feature."""
        return [a for a in range(self.batch_ndim) if a not in (self.batch_dim_axis, self.feature_dim_axis)]

    def get_spatial_axes(self) -> list[int]:
        """Return the indices of all axes but batch and feature, not counting batch."""
        return [int(self.get_batch_axis_excluding_batch(axis) or 0) for axis in self.get_spatial_batch_axes()]

    def get_axis_from_description(self, axis: Any, allow_int: bool = True) -> int:
        """Return the index of the one axis that a name such as ``"T"`` or a dim denotes."""
        return resolve_axis(self.template, axis, behavior_version=0 if allow_int else 10**6)

    def get_axes_from_description(self, axes: Any, allow_int: bool = True) -> list[int]:
        """Return the indices of all axes that a name such as ``"static"`` denotes."""
        return resolve_axes(self.template, axes, behavior_version=0 if allow_int else 10**6)

    def get_dim_tag(self, axis: int) -> Dim:
        """Return the dim of an axis."""
        return self.template.dims[axis]

    def get_dim_tag_from_description(self, axis: Any) -> Dim:
        """Return the dim of the one axis that a name denotes."""
        return self.template.dims[self.get_axis_from_description(axis)]

    def get_time_dim_tag(self) -> Dim:
        """Return the dim of the time axis."""
        dim = self.template.time_dim
        if dim is None:
            raise self.error("has no time axis.")
        return dim

    # --- lengths ---

    def _lengths(self, dim: Dim) -> Any:
        if dim in self.own_lengths:
            return self.own_lengths[dim]
        return LengthsOf(dim) if self._ctx is None else lengths_with_dim(self._ctx.lens(dim), dim)

    def get_dynamic_size(self, axis: int) -> Any:
        """Return the lengths of an axis, int32 [batch]."""
        return self._lengths(self.template.dims[axis])

    @property
    def size_placeholder(self) -> Any:
        """Return the lengths by axis, not counting batch. Entries can be set."""
        sizes = {self.get_batch_axis_excluding_batch(a): self.get_dynamic_size(a) for a in self.template.dynamic_axes}
        return Sizes(self, sizes)

    @size_placeholder.setter
    def size_placeholder(self, sizes: Optional[Mapping[int, Any]]) -> None:
        for axis, lengths in (sizes or {}).items():
            self.set_lengths(axis, lengths)

    def set_lengths(self, axis: int, lengths: Any) -> None:
        """Set the lengths of an axis.

        :param axis: not counting batch
        :param lengths: int32 [batch]; if they are those of a dim, the axis has this dim from now on
        """
        data = self.template
        if not 0 <= axis < self.ndim:
            raise self.error("has no axis %r (not counting batch) whose lengths could be set." % (axis,))
        index = self.get_batch_axis(axis)
        dim, tag = dim_of_lengths(lengths), size_tags.tag_of(lengths)
        if dim is not None:
            self._data = data.with_dim(index, dim) if data.dims[index].size is None else data
        elif tag is not None and data.dims[index].size is None:
            self._data, own = data.with_dim(index, tag), tf.cast(lengths, tf.int32)
            size_tags.set_tag(own, tag)
            self.own_lengths[tag] = own
        elif data.dims[index].size is None:
            self.own_lengths[data.dims[index]] = tf.cast(lengths, tf.int32)


class Sizes(dict[Any, Any]):
    """Lengths by axis; setting one changes the template they belong to."""

    def __init__(self, view: AxesView, sizes: Mapping[Any, Any]) -> None:
        super().__init__(sizes)
        self._view = view

    def __setitem__(self, axis: int, lengths: Any) -> None:
        super().__setitem__(axis, lengths)
        self._view.set_lengths(axis, lengths)

    def copy(self) -> dict[Any, Any]:
        """Return the lengths as a plain dict."""
        return dict(self)
