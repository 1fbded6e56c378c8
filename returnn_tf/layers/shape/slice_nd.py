"""`slice_nd`: a part of an axis for every sequence, or for every frame of another axis."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import LayerOrSize
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.cast import is_int
from returnn_tf.layers.shape.gather import GatherAxes, emit_position, with_batch
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.gather import slices
from returnn_tf.ops.frames.shape import size_of, to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class SliceNdPlan(LayerPlan):
    """The plan of `SliceNdLayer`.

    :param new_dim: the axis of the slices
    :param gather: how the entries of the slices are found
    """

    new_dim: Dim
    gather: GatherAxes


@register_layer("slice_nd")
class SliceNdLayer(ConcatInputLayer, Planned[SliceNdPlan]):
    """``x[start : start + size]`` of one axis, with a start and a size for every sequence.

    A start with further axes, e.g. [batch, time], gives a slice for each of its entries, with these axes in front.
    If the start is a layer, entries after the end of a sequence or of the slice are zero, else only those after the end
    of the array.
    Lengths: the sizes, also for each frame if start or size have a time axis; without size ``max(lengths - start,
    min_size)``; an int size makes a static axis, a dim is that of the new axis.

    Example::

        extern_data = {"data": {"dim": 4}, "start": {"shape": (), "dtype": "int32", "time_dim_axis": None}}
        network = {"output": {"class": "slice_nd", "start": "data:start", "size": 3, "from": "data"}}
    """

    start: Union[None, int, str] = option(
        None, help="int, or layer with the index of the first entry; None: 0", refs=True
    )
    size: LayerOrSize = option(
        None, help="int, dim, or layer with the sizes; None: until the end of the sequence", refs=True
    )
    min_size: Optional[int] = option(None, help="without size: the slice has at least this size")
    axis: AxisOption = option("T", help="the axis to slice")
    out_spatial_dim: Optional[Dim] = option(None, help="the new dim")

    def template(self, ctx: PlanContext) -> SliceNdPlan:
        """Infer the output: the axis of the slice in the place of the axis, after those of the start."""
        data = self.input_template(ctx)
        axis = ctx.axis(data, self.axis)
        if data.dims[axis].is_batch:
            raise ctx.error("the batch axis can't be sliced.")
        for what, value in (("start", self.start), ("size", self.size)):
            if isinstance(value, Node) and not (value.output.unknown or is_int(value.output.dtype)):
                raise ctx.error("%s must hold integers, but layer %r is %s." % (what, value.path, value.output))
            if isinstance(value, int) and value < 0:
                raise ctx.error("%s must not be negative, got %d." % (what, value))
        if self.min_size is not None and self.size is not None:
            ctx.log_inert("min_size", "it is for slices without size")
        new_dim = ctx.bind(self.out_spatial_dim, self._inferred_dim(ctx, data, axis))
        position = Data((), "int32")
        if isinstance(self.start, Node):
            position = with_batch(self.start.output, data)
        gather = GatherAxes(data, position, axis)
        if new_dim.size is None and new_dim is not self.size:
            over = self.size.output if isinstance(self.size, Node) else gather.arranged_position
            ctx.set_lengths_over(new_dim, over.dims)
        where = len(gather.common) + len(gather.before) + len(gather.own)
        out = gather.output(data).with_axis(where, new_dim, feature=data.feature_axis == axis)
        if data.time_axis == axis and out.time_axis is None:
            out = out.replace(time_axis=where)
        return SliceNdPlan(with_feature_default(out.with_time_axis_default()), new_dim, gather)

    def _inferred_dim(self, ctx: PlanContext, data: Data, axis: int) -> Dim:
        if isinstance(self.size, Dim):
            ctx.depend_on_dim(self.size)
            return self.size
        if isinstance(self.size, int):
            return (
                ctx.new_feature(self.size)
                if axis == data.feature_axis
                else ctx.new_spatial(self.size, "sliced-time:%s")
            )
        if self.size is None and not isinstance(self.start, Node) and self.min_size is None:
            return data.dims[axis] - int(self.start or 0)
        return ctx.new_spatial(None, "sliced-time:%s")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather."""
        gather = self.plan.gather
        x = gather.arrange_input(ctx, self.emit_input(ctx))
        dim = gather.data.dims[gather.axis]
        if not isinstance(self.start, Node):
            start = tf.constant(self.start or 0)
            size = self._define_size(ctx, Data((), "int32"), ctx.lens(dim) - start)
            return slices(x, start, size, size_of(x, gather.rank_before), axis=gather.rank_before, batch_dims=0)
        start = tf.cast(gather.arrange_position(ctx, emit_position(ctx, self.start, gather.position)), tf.int32)
        limit = gather.limits(ctx, dim)
        size = self._define_size(ctx, gather.arranged_position, limit - start)
        limit = self._until_end_of_slice(ctx, start, limit)
        return slices(x, start, size, limit, axis=gather.rank_before, batch_dims=len(gather.common))

    def _until_end_of_slice(self, ctx: EmitContext, start: Any, limit: Any) -> Any:
        """Return the end of the sequence or of the slice, whichever is first.

        :param start: arranged by `GatherAxes`
        :param limit: the end of the sequence
        """
        where = self.plan.gather.arranged_position
        if isinstance(self.size, Node):
            mapping = match_axes(self.size.output, where)
            if None in mapping:
                return limit  # a slice that several sizes share
            sizes = tf.cast(to_layout(ctx.value(self.size), self.size.output, where, mapping), tf.int32)
        elif isinstance(self.size, Dim) and self.size.is_dynamic() and where.batch_axis is not None:
            lens = ctx.lens(self.size)
            by_sequence = Data((where.dims[where.batch_axis],), "int32")
            sizes = lens if lens.shape.rank == 0 else to_layout(lens, by_sequence, where)
        else:
            return limit
        return tf.minimum(limit, start + sizes)

    def _define_size(self, ctx: EmitContext, where: Data, rest: Any) -> Any:
        """Define the size of the new axis.

        :param where: the axes of ``rest``
        :param rest: number of entries after the start
        """
        if self.plan.new_dim.size is not None or self.plan.new_dim is self.size or ctx.has_lens(self.plan.new_dim):
            return ctx.size(self.plan.new_dim)
        if isinstance(self.size, Node):
            return ctx.define_lens_by(self.plan.new_dim, self.size.output, ctx.value(self.size))
        return ctx.define_lens_by(self.plan.new_dim, where, tf.maximum(rest, self.min_size or 0))
