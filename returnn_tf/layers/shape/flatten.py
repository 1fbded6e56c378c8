"""`flatten_batch`, `unflatten_batch`: packing of valid frames into the batch axis, and its inverse; `unflatten_nd`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional
from weakref import WeakValueDictionary

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.cast import is_int
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer, concat_template
from returnn_tf.ops.frames.packing import frame_indices, pack, unflatten, unpack
from returnn_tf.ops.frames.shape import merge_axes, split_axis, transpose, with_sizes
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


class PackedBatch(Dim):
    """The batch dim of packed frames.

    :param batch: the original batch dim
    :param inner: the dim whose frames are packed
    :param batch_major: whether the frames of a sequence are adjacent, else those of one time step
    """

    __slots__ = ("batch", "batch_major", "inner")

    def __init__(self, batch: Dim, inner: Dim, batch_major: bool) -> None:
        super().__init__(DimKind.BATCH, None, "packed(%s)" % inner)
        self.batch, self.inner, self.batch_major = batch, inner, batch_major


_packed: WeakValueDictionary[tuple[int, int, bool], PackedBatch] = WeakValueDictionary()


def packed_batch(batch: Dim, inner: Dim, batch_major: bool) -> PackedBatch:
    """Return the dim of the packed frames of a dim, always the same object."""
    key = (id(batch), id(inner), batch_major)
    dim = _packed.get(key)
    if dim is None:
        dim = _packed[key] = PackedBatch(batch, inner, batch_major)
    return dim


def _packed_indices(ctx: EmitContext, dim: PackedBatch, data: Data, axis: int) -> Any:
    """Return frame indices by [batch, time], or [time, batch] if that is the order.

    :param data: template with the batch axis and the packed axis
    """
    mask = ctx.seq_mask_by_batch(data, axis)
    return frame_indices(mask if dim.batch_major else tf.transpose(mask))


@dataclasses.dataclass(frozen=True, eq=False)
class FlattenBatchPlan(LayerPlan):
    """The plan of `FlattenBatchLayer`.

    :param packed_axis: the axis that becomes a part of the batch axis
    """

    packed_axis: int


@register_layer("flatten_batch")
class FlattenBatchLayer(ConcatInputLayer, Planned[FlattenBatchPlan]):
    """Packs the valid frames of all sequences: [batch, time, ...] becomes [sum of the lengths, ...].

    Lengths: the axis is removed; the batch axis has all valid frames.

    Example::

        network = {"output": {"class": "flatten_batch", "axis": "T", "from": "data"}}
    """

    axis: AxisOption = option("T", help="the axis to pack")
    batch_major: bool = option(True, help="order sequence by sequence; False: frame by frame")

    def template(self, ctx: PlanContext) -> FlattenBatchPlan:
        """Infer the output: the packed batch axis in front."""
        data = self.input_template(ctx)
        packed_axis = ctx.axis(data, self.axis)
        batch = data.batch_axis
        if batch is None or batch == packed_axis:
            raise ctx.error("needs a batch axis and another axis to pack, got %r of %s." % (self.axis, data))
        dim = packed_batch(data.dims[batch], data.dims[packed_axis], self.batch_major)
        rest = data.without_axes([batch, packed_axis])
        return FlattenBatchPlan(with_feature_default(rest.with_axis(0, dim).with_time_axis_default()), packed_axis)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather; for a static axis a reshape."""
        data, axis, batch = self.input, self.plan.packed_axis, self.input.batch_axis
        assert batch is not None
        front = [batch, axis] if self.batch_major else [axis, batch]
        x = transpose(self.emit_input(ctx), front + [a for a in range(data.rank) if a not in front])
        dim = ctx.output.dims[0]
        assert isinstance(dim, PackedBatch)
        if data.dims[axis].is_dynamic():
            x = pack(x, _packed_indices(ctx, dim, data, axis))
        else:
            x = merge_axes(x, 0, 2)[0]
        ctx.define_size(dim, tf.shape(x)[0])
        return x


@dataclasses.dataclass(frozen=True, eq=False)
class UnflattenBatchPlan(LayerPlan):
    """The plan of `UnflattenBatchLayer`.

    :param packed: the batch axis with the frames of all sequences
    """

    packed: PackedBatch


@register_layer("unflatten_batch")
class UnflattenBatchLayer(ConcatInputLayer, Planned[UnflattenBatchPlan]):
    """The inverse of `flatten_batch`: [sum of the lengths, ...] becomes [batch, time, ...]; padded frames are zero.

    Lengths: those before `flatten_batch`.

    Example::

        network = {
            "f": {"class": "flatten_batch", "axis": "T", "from": "data"},
            "l": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "f"},
            "output": {"class": "unflatten_batch", "from": "l"}}
    """

    def template(self, ctx: PlanContext) -> UnflattenBatchPlan:
        """Infer the output: batch and the packed axis in front."""
        data = self.input_template(ctx)
        dim = None if data.batch_axis is None else data.dims[data.batch_axis]
        if not isinstance(dim, PackedBatch):
            raise ctx.error("the source must come from a flatten_batch layer, but its batch axis is %s." % dim)
        packed = dim
        rest = data.without_axes([data.batch_axis])  # type: ignore[list-item]
        is_time = dim.inner.kind is DimKind.SPATIAL
        return UnflattenBatchPlan(rest.with_axis(0, dim.inner, time=is_time).with_axis(0, dim.batch), packed)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one scatter; for a static axis a reshape."""
        data, dim = self.input, self.plan.packed
        batch = data.batch_axis
        x = transpose(self.emit_input(ctx), [batch] + [a for a in range(data.rank) if a != batch])  # type: ignore
        sizes = [ctx.size(dim.batch), ctx.size(dim.inner)]
        if not dim.batch_major:
            sizes.reverse()
        if dim.inner.is_dynamic():
            x = unpack(x, _packed_indices(ctx, dim, ctx.output, 1), sizes[0], sizes[1])
        else:
            x = split_axis(x, 0, sizes)
        return x if dim.batch_major else transpose(x, [1, 0] + list(range(2, data.rank + 1)))


@dataclasses.dataclass(frozen=True, eq=False)
class UnflattenNdPlan(LayerPlan):
    """The plan of `UnflattenNdLayer`.

    :param in_axis: the axis that is divided
    :param new_dims: the axes instead
    """

    in_axis: int
    new_dims: Sequence[Dim]


@register_layer("unflatten_nd")
class UnflattenNdLayer(ConcatInputLayer, Planned[UnflattenNdPlan]):
    """Splits the frames of every sequence into several axes, with separate sizes for each sequence.

    Frame ``i * w + j`` of a sequence with the sizes ``(h, w)`` becomes entry ``(i, j)``; all other entries are zero.
    Lengths: the sizes of the sequence.

    Example::

        extern_data = {"data": {"dim": 4}, "sizes": {"shape": (2,), "dtype": "int32", "time_dim_axis": None}}
        network = {"output": {"class": "unflatten_nd", "sizes": "data:sizes", "num_axes": 2, "from": "data"}}
    """

    sizes: LayerRef = option(help="layer [batch, num_axes] with the sizes of every sequence", refs=True)
    num_axes: int = option(help="number of new axes")
    in_dim: Optional[Axis] = option(None, help="the axis to split (default: time)")
    out_dims: Optional[list[Dim]] = option(
        None, help="the new dims; this layer defines their lengths unless they are already known"
    )
    declare_same_sizes_as: Optional[dict[int, LayerRef]] = option(
        None, help="{index of a new axis: layer whose time dim it has}", refs=True
    )

    def template(self, ctx: PlanContext) -> UnflattenNdPlan:
        """Infer the output: [batch, new axes, rest]."""
        data = self.node.input = concat_template(ctx, self.sources)
        in_axis = ctx.axis(data, "T" if self.in_dim is None else self.in_dim)
        sizes = self.sizes.output
        if in_axis == data.batch_axis:
            raise ctx.error("in_dim must be another axis than the batch axis of %s." % data)
        if data.batch_axis is None or not is_int(sizes.dtype) or sizes.rank != 2 or sizes.batch_axis is None:
            raise ctx.error("needs a source with batch axis and integer sizes [batch, num_axes], got sizes %s." % sizes)
        other = sizes.dims[1 - sizes.batch_axis]
        if other.size not in (None, self.num_axes):
            raise ctx.error("num_axes is %d, but sizes is %s." % (self.num_axes, sizes))
        if self.out_dims is not None and len(self.out_dims) != self.num_axes:
            raise ctx.error(
                "out_dims has %d dims for %d axes. Give one for each." % (len(self.out_dims), self.num_axes)
            )
        if isinstance(self.declare_same_sizes_as, Node):
            raise ctx.error("declare_same_sizes_as must be a dict {index of a new axis: layer}.")
        new_dims = [self._new_dim(ctx, i) for i in range(self.num_axes)]
        rest = data.without_axes([data.batch_axis, in_axis])
        for i, dim in reversed(list(enumerate(new_dims))):
            rest = rest.with_axis(0, dim, time=i == 0)
        return UnflattenNdPlan(with_feature_default(rest.with_axis(0, data.dims[data.batch_axis])), in_axis, new_dims)

    def _new_dim(self, ctx: PlanContext, index: int) -> Dim:
        same = (self.declare_same_sizes_as or {}).get(index)
        declared: Optional[Dim] = self.out_dims[index] if self.out_dims is not None else None
        if same is not None:
            declared = same.output.time_dim
            if declared is None:
                raise ctx.error("declare_same_sizes_as: layer %r has no time axis." % same.path)
        return ctx.bind(declared, ctx.new_spatial(None, "%%s:unflatten-nd:%d" % index))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather."""
        data, sizes = self.input, self.sizes.output
        front = [data.batch_axis, self.plan.in_axis]
        x = transpose(self.emit_input(ctx), front + [a for a in range(data.rank) if a not in front])  # type: ignore
        values = tf.cast(transpose(ctx.value(self.sizes), [sizes.batch_axis, 1 - sizes.batch_axis]), tf.int32)
        if values.shape[1] is None:
            text = "Layer %r: num_axes is %d, but the number of sizes is:" % (ctx.node.path, self.num_axes)
            count = tf.shape(values)[1]
            with tf.control_dependencies([tf.debugging.Assert(tf.equal(count, self.num_axes), [text, count])]):
                values = with_sizes(tf.identity(values)[:, : self.num_axes], [None, self.num_axes])
        for i, dim in enumerate(self.plan.new_dims):
            if not ctx.has_lens(dim):
                ctx.define_lens(dim, values[:, i])
        return unflatten(x, values, [ctx.size(d) for d in self.plan.new_dims])
