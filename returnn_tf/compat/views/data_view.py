"""A tensor with its template and lengths, for user code; without a tensor while the network is planned."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.compat.views.axes_view import AxesView
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.ops.frames.shape import moved_axis_perm, to_layout, transpose
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


class DataView(AxesView):
    """A tensor with its template and lengths.

    :param tensor: value in the layout of the template, or None
    :param ctx: of the layer that the code is part of; None while the network is planned
    """

    def __init__(self, data: Data, tensor: Any = None, ctx: Optional[EmitContext] = None, name: str = "data") -> None:
        if ctx is not None and data.time_axis is None and len(data.loop_axes) == 1:
            # In a layer of a loop that is computed for all steps at once, these are the frames.
            data = data.replace(time_axis=data.loop_axes[0])
        super().__init__(data, ctx, name)
        self._tensor = tensor

    # --- tensors ---

    @property
    def placeholder(self) -> Any:
        """Return the tensor."""
        return self._tensor

    @placeholder.setter
    def placeholder(self, value: Any) -> None:
        self._tensor = value

    raw_tensor = placeholder

    def tensor(self) -> Any:
        """Return the tensor.

        :raises ConfigError: there is none while the network is planned
        """
        if self._tensor is None:
            raise self.error("has no tensor: it is only a template here.")
        return self._tensor

    def emitting(self) -> EmitContext:
        """Return the context of the layer whose ops are built.

        :raises ConfigError: the network is only planned yet
        """
        if self._ctx is None:
            raise self.error("is only a template here: the network is being planned, there are no tensors yet.")
        return self._ctx

    def get_sequence_lengths(self) -> Any:
        """Return the lengths of the time axis, int32 [batch]."""
        data = self.template
        if data.time_axis is None:
            raise self.error("has no time axis, so there are no sequence lengths.")
        lengths = self.get_dynamic_size(data.time_axis)
        if self._ctx is None or lengths.shape.rank or data.batch_axis is None:
            return lengths
        return tf.fill([self._ctx.size(data.dims[data.batch_axis])], lengths)

    def get_sequence_mask(self) -> Any:
        """Return the bool mask of the valid frames, [batch, time] or [time, batch] in the order of the axes."""
        data = self.template
        if data.time_axis is None or data.batch_axis is None:
            raise self.error("needs a batch and a time axis for a sequence mask.")
        mask = self.emitting().seq_mask_by_batch(data, data.time_axis)
        return tf.transpose(mask) if data.time_axis < data.batch_axis else mask

    def get_sequence_mask_broadcast(self, axis: Any = None) -> Any:
        """Return the bool mask of the valid frames, with size 1 on all other axes.

        :param axis: default: the time axis
        """
        data = self.template
        index = data.time_axis if axis is None else self.get_axis_from_description(axis)
        if index is None:
            raise self.error("has no time axis, so there is no sequence mask.")
        return self.emitting().mask(data, index)

    def get_batch_dim(self) -> Any:
        """Return the number of sequences, times the hypotheses of a search."""
        axis = self.template.batch_axis
        return 1 if axis is None else tf.shape(self.tensor())[axis]

    def time_dimension(self) -> Any:
        """Return the size of the padded time axis."""
        return tf.shape(self.tensor())[self.template.dims.index(self.get_time_dim_tag())]

    def get_placeholder_as_batch_major(self) -> Any:
        """Return the tensor with the batch axis first."""
        return self.copy_as_batch_major().tensor()

    def get_placeholder_as_time_major(self) -> Any:
        """Return the tensor with the time axis first."""
        return self.copy_as_time_major().tensor()

    def get_placeholder_with_specific_batch_dim_axis(self, batch_dim_axis: int) -> Any:
        """Return the tensor with the batch axis at this index."""
        return self._moved(self.template.batch_axis, batch_dim_axis).tensor()

    def get_placeholder_flattened(self, keepdims: bool = False) -> Any:
        """Return the valid frames as a tensor [valid frames, features...]."""
        del keepdims
        view = self.copy_as_batch_major()
        time = view.template.time_axis
        if time is None:
            return view.tensor()
        view = view._moved(time, 1)
        return tf.boolean_mask(view.tensor(), view.get_sequence_mask())

    # --- copies with a tensor, if there is one ---

    def copy(self, name: Optional[str] = None) -> DataView:
        """Return a copy; what is set on it does not change this one."""
        return self._with(self.template, self._tensor, name)

    def copy_as_batch_major(self) -> DataView:
        """Return a copy with the batch axis first."""
        return self._moved(self.template.batch_axis, 0)

    def copy_as_time_major(self) -> DataView:
        """Return a copy with the time axis first."""
        return self._moved(self.template.time_axis, 0)

    def copy_as_batch_feature_major(self) -> DataView:
        """Return a copy with batch first and feature second."""
        view = self.copy_as_batch_major()
        return view._moved(view.template.feature_axis, 1)

    def copy_as_time_batch_major(self) -> DataView:
        """Return a copy with time first and batch second."""
        view = self.copy_as_batch_major()
        return view._moved(view.template.time_axis, 0)

    def copy_with_feature_last(self) -> DataView:
        """Return a copy with the feature axis last."""
        return self._moved(self.template.feature_axis, self.batch_ndim - 1)

    def copy_with_batch_dim_axis(self, batch_dim_axis: int) -> DataView:
        """Return a copy with the batch axis at this index."""
        return self._moved(self.template.batch_axis, batch_dim_axis)

    def copy_move_axis(self, old_axis: int, new_axis: int) -> DataView:
        """Return a copy with one axis moved."""
        return self._moved(old_axis % self.batch_ndim, new_axis % self.batch_ndim)

    def copy_transpose(self, perm: Any, allow_int: bool = True) -> DataView:
        """Return a copy with the axes in another order."""
        order = [self.get_axis_from_description(axis, allow_int) for axis in perm]
        tensor = None if self._tensor is None else transpose(self._tensor, order)
        return self._with(self.template.permuted(order), tensor)

    def copy_compatible_to(self, data: DataView, **options: Any) -> DataView:
        """Return a copy with the axes of another one, of size 1 where this one lacks them.

        :param options: not needed
        """
        del options
        into = data.template
        tensor = None if self._tensor is None else to_layout(self._tensor, self.template, into)
        return self._with(into.replace(dtype=self.dtype, sparse_dim=self.sparse_dim), tensor)

    def copy_add_batch_dim(self, batch_dim_axis: int, **options: Any) -> DataView:
        """Return a copy with a batch axis of size 1."""
        del options
        return self._added(batch_dim_axis, Dim(DimKind.SPATIAL, 1, "batch", auto=True))

    def copy_add_spatial_dim(self, spatial_dim_axis: Optional[int] = None, dim: Any = 1, **options: Any) -> DataView:
        """Return a copy with a further axis of size 1.

        :param spatial_dim_axis: default: before the feature axis
        """
        del options
        if dim not in (1, None):
            raise self.error("copy_add_spatial_dim: only axes of size 1 can be added, got %r." % (dim,))
        feature = self.feature_dim_axis
        default = self.batch_ndim if feature is None else feature
        axis = default if spatial_dim_axis is None else spatial_dim_axis
        return self._added(axis, Dim(DimKind.SPATIAL, 1, "added", auto=True))

    def copy_add_feature_dim(self, axis: Optional[int] = None) -> DataView:
        """Return a copy with a feature axis of size 1, by default at the end."""
        dim = Dim(DimKind.FEATURE, 1, "feature", auto=True)
        return self._added(self.batch_ndim if axis is None else axis, dim, feature=True)

    def copy_squeeze_axes(self, axes: Any) -> DataView:
        """Return a copy without axes of size 1."""
        gone = [axis % self.batch_ndim for axis in axes]
        tensor = None if self._tensor is None else tf.squeeze(self._tensor, gone)
        return self._with(self.template.without_axes(gone), tensor)

    def _added(self, axis: int, dim: Dim, feature: bool = False) -> DataView:
        axis = axis if axis >= 0 else axis + self.batch_ndim + 1
        tensor = None if self._tensor is None else tf.expand_dims(self._tensor, axis)
        return self._with(self.template.with_axis(axis, dim, feature=feature), tensor)

    def _moved(self, source: Optional[int], target: int) -> DataView:
        if source is None or source == target:
            return self
        perm = moved_axis_perm(self.batch_ndim, source, target)
        return self._with(self.template.permuted(perm), None if self._tensor is None else transpose(self._tensor, perm))

    def _with(self, data: Data, tensor: Any, name: Optional[str] = None) -> DataView:
        view = type(self)(data, tensor, self._ctx, name or self.name)
        view.own_lengths = dict(self.own_lengths)
        return view

    # --- copies of the template alone ---

    def with_template(self, data: Data, name: Optional[str] = None) -> DataView:
        """Return another template without a tensor; lengths are those of the same network."""
        return self._with(data, None, name)

    def copy_template(self, name: Optional[str] = None, *, dtype: Any = None) -> DataView:
        """Return a copy without the tensor.

        :param dtype: another dtype
        """
        view = self._with(self.template, None, name)
        if dtype is not None:
            view.dtype = dtype
        return view

    def copy_template_excluding_axis(self, exclude_axis: int, name: Optional[str] = None) -> DataView:
        """Return a copy without the tensor and without one axis, counted with batch."""
        return self._with(self.template.without_axes([exclude_axis % self.batch_ndim]), None, name)

    def copy_template_excluding_time_dim(self, name: Optional[str] = None) -> DataView:
        """Return a copy without the tensor and without the time axis."""
        return self._with(self.template.without_axes([self._index("T")]), None, name)

    def copy_template_excluding_spatial_dim(self, spatial_axis_num: int, name: Optional[str] = None) -> DataView:
        """Return a copy without the tensor and without one of the axes that are neither batch nor feature."""
        return self._with(self.template.without_axes([self.get_spatial_batch_axes()[spatial_axis_num]]), None, name)

    def copy_template_replace_dim_tag(self, axis: int, new_dim_tag: Dim, name: Optional[str] = None) -> DataView:
        """Return a copy without the tensor, with another dim in one axis."""
        return self._with(self.template.with_dim(axis % self.batch_ndim, new_dim_tag), None, name)

    def copy_template_new_dim_tags(
        self, new_dim_tags: Any, name: Optional[str] = None, keep_special_axes: bool = False
    ) -> DataView:
        """Return a copy without the tensor, with other dims.

        :param keep_special_axes: keep the indices of time and feature axis
        """
        data = self.template
        kept = {"time_axis": data.time_axis, "feature_axis": data.feature_axis} if keep_special_axes else {}
        new = Data.from_dims(new_dim_tags, dtype=data.dtype, sparse_dim=data.sparse_dim, **kept)
        return self._with(new.replace(beam=data.beam, vocab=data.vocab), None, name)

    def copy_template_replace_dim(self, axis: int, new_dim: Optional[int]) -> DataView:
        """Return a copy without the tensor, with another size of one axis, counted with batch."""
        view = self.copy_template()
        index = view.get_batch_axis_excluding_batch(axis)
        if index is None:
            raise self.error("copy_template_replace_dim: the batch axis has no static size.")
        view.shape = view.shape[:index] + (new_dim,) + view.shape[index + 1 :]
        return view

    def copy_template_adding_time_dim(self, name: Optional[str] = None, time_dim_axis: int = 0) -> DataView:
        """Return a copy without the tensor, with a new time axis."""
        dim = Dim(DimKind.SPATIAL, None, "%s:time" % (name or self.name), auto=True)
        return self._with(self.template.with_axis(time_dim_axis, dim, time=True), None, name)

    def _index(self, axis: str) -> int:
        return self.get_axis_from_description(axis)

    def __repr__(self) -> str:
        return "<Data %r %s>" % (self.name, self.template)
