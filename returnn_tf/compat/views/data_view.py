"""A tensor with its template and lengths, for user code; without a tensor while the network is planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

from returnn_tf.compat.views import size_tags
from returnn_tf.compat.views.changed_data import changed_data
from returnn_tf.compat.views.names_of_dims import axes_of_lengths
from returnn_tf.compat.views.size_tags import LengthsOf, dim_of_lengths, lengths_with_dim
from returnn_tf.config.errors import CodeError, ConfigError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.ops.frames.shape import moved_axis_perm, to_layout, transpose
from returnn_tf.tensor import Beam, Data, Dim, DimKind, resolve_axes, resolve_axis
from returnn_tf.tensor.expected_dims import ImplicitDynSizeDim, ImplicitSparseDim, check_dims
from returnn_tf.util.lazy_tf import tf


class DataView:
    """A tensor with its template, whose attributes user code reads and sets, and its lengths.

    Indices of axes count batch unless the name says otherwise.

    :param tensor: value in the layout of the template, or None
    :param ctx: of the layer that the code is part of; None while the network is planned
    """

    def __init__(self, data: Data, tensor: Any = None, ctx: Optional[EmitContext] = None, name: str = "data") -> None:
        if ctx is not None and data.time_axis is None and len(data.loop_axes) == 1:
            # In a layer of a loop that is computed for all steps at once, these are the frames.
            data = data.replace(time_axis=data.loop_axes[0])
        self._data = data
        self._tensor = tensor
        self._ctx = ctx
        self._changes: dict[str, Any] = {}
        #: Lengths of the user's own, by dim.
        self.own_lengths: dict[Dim, Any] = {}
        self.name = name
        #: Notes of a front end about where the tensor is computed, see `returnn_tf.compat.modules.contexts`.
        self.batch: Any = None
        self.control_flow_ctx: Any = None
        self.available_for_inference = True
        #: Of the template of a recurrent layer: the layout of its state.
        self.hidden_state: Optional[HiddenState] = None
        #: Of the output of a layer in a network of templates: returns that of a layer inside of it, by its name there.
        self.part: Optional[Callable[[str], DataView]] = None

    # --- template ---

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

    @sparse_dim.setter
    def sparse_dim(self, value: Optional[Dim]) -> None:
        data = self.template
        self._data = data.replace(sparse_dim=value, feature_axis=data.feature_axis if value is None else None)

    @property
    def feature_dim(self) -> Optional[Dim]:
        """Return the dim of the feature axis, or None."""
        return self.template.feature_dim

    @property
    def feature_dim_or_sparse_dim(self) -> Optional[Dim]:
        """Return the dim of the labels, or of the feature axis, or None."""
        return self.template.sparse_dim or self.template.feature_dim

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

    dim_tags_set = dims_set

    @property
    def dim_tags_set_implicit(self) -> set[Any]:
        """Return the dims, with marks for those that the labels and the lengths depend on: for ``out_shape``."""
        data = self.template
        found: set[Any] = set(data.dims)
        if data.sparse_dim is not None:
            found.add(ImplicitSparseDim(data.sparse_dim))
        if data.dynamic_axes and data.batch_axis is None:
            found.update(
                ImplicitDynSizeDim(dim) for axis in data.dynamic_axes for dim in axes_of_lengths(data.dims[axis])
            )
        return found

    dims_set_implicit = dim_tags_set_implicit

    @property
    def dim_tags_set_implicit_only_wrapped(self) -> set[Any]:
        """Return the marked ones of `dim_tags_set_implicit`."""
        return {dim for dim in self.dim_tags_set_implicit if not isinstance(dim, Dim)}

    @property
    def size_dtype(self) -> str:
        """Return the dtype of lengths."""
        return "int32"

    @property
    def undefined(self) -> bool:
        """Return False: the template is known."""
        return False

    def sanity_check(self, **options: Any) -> None:
        """Check that the attributes that were set agree with each other.

        :raises ConfigError: they contradict each other
        """
        del options
        assert self.template is not None

    def get_batch_dim_tag(self) -> Dim:
        """Return the dim of the batch axis.

        :raises ConfigError: there is none
        """
        return self.get_dim_tag_from_description("B")

    def verify_out_shape(self, out_shape: Any, **options: Any) -> None:
        """Check that the dims are these, as the option ``out_shape`` does.

        :raises ConfigError: a dim is missing, or there is another one
        """
        del options

        def by_sequence(dim: Dim) -> bool:
            return any(axis.is_batch for axis in axes_of_lengths(dim))

        check_dims(self.template.map_dims(Dim.declared), out_shape, Dim.declared, by_sequence)

    def get_kwargs(self, *, include_special_axes: bool = True) -> dict[str, Any]:
        """Return the arguments of `Data` for the same template.

        :param include_special_axes: whether to name the time and the feature axis
        """
        data = self.template
        found: dict[str, Any] = {"name": self.name, "dim_tags": data.dims, "dtype": data.dtype}
        if include_special_axes:
            found.update(time_dim_axis=data.time_axis, feature_dim_axis=data.feature_axis)
        optional = {"sparse_dim": data.sparse_dim, "vocab": data.vocab, "batch": self.batch}
        return {**found, **{key: value for key, value in optional.items() if value is not None}}

    @property
    def batch_shape(self) -> tuple[Optional[int], ...]:
        """Return the size of each axis, None where dynamic."""
        return self.template.static_shape

    @property
    def batch_shape_dense(self) -> tuple[Optional[int], ...]:
        """Return `batch_shape`, with the number of labels at the end if sparse."""
        return self.batch_shape + ((self.dim,) if self.sparse else ())

    @property
    def batch_ndim(self) -> int:
        """Return the number of axes, batch included."""
        return self.template.rank

    @property
    def ndim(self) -> int:
        """Return the number of axes without batch."""
        return len(self.shape)

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

    # --- axes ---

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
        view.batch, view.control_flow_ctx = self.batch, self.control_flow_ctx
        view.available_for_inference, view.hidden_state = self.available_for_inference, self.hidden_state
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

    def copy_add_dim_by_tag(self, dim_tag: Dim, unbroadcast: bool = False, axis: Optional[int] = None) -> DataView:
        """Return a copy of the template with one more axis.

        :param unbroadcast: not used: there is no tensor
        :param axis: its index, counted with batch (default: the first one for batch, the last one for features; others
            come after the batch)
        """
        del unbroadcast
        if self.placeholder is not None:
            raise self.error("copy_add_dim_by_tag: only templates get another axis. Use tf.expand_dims for the tensor.")
        data = self.template
        if axis is None:
            behind = data.rank if dim_tag.kind is DimKind.FEATURE else int(data.batch_axis == 0)
            axis = 0 if dim_tag.is_batch else behind
        feature = dim_tag.kind is DimKind.FEATURE and data.feature_axis is None and data.sparse_dim is None
        time = dim_tag.is_dynamic() and data.time_axis is None
        return self._with(data.with_axis(axis % (data.rank + 1), dim_tag, feature=feature, time=time), None)

    def copy_template_set_ctx(self, ctx: Any) -> DataView:
        """Return a copy without the tensor, with a note about the loop or branch that it is in."""
        view = self.copy_template()
        view.control_flow_ctx = ctx
        return view

    def _index(self, axis: str) -> int:
        return self.get_axis_from_description(axis)

    def __repr__(self) -> str:
        return "<Data %r %s>" % (self.name, self.template)


class Sizes(dict[Any, Any]):
    """Lengths by axis; setting one changes the template they belong to."""

    def __init__(self, view: DataView, sizes: Mapping[Any, Any]) -> None:
        super().__init__(sizes)
        self._view = view

    def __setitem__(self, axis: int, lengths: Any) -> None:
        super().__setitem__(axis, lengths)
        self._view.set_lengths(axis, lengths)

    def copy(self) -> dict[Any, Any]:
        """Return the lengths as a plain dict."""
        return dict(self)
