"""`slice`: the same part of an axis for all sequences; `slice_nd`: a separate one for each."""

from __future__ import annotations

from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption
from returnn_tf.graph.node import Node
from returnn_tf.graph.option_types import LayerOrSize
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.cast import is_int
from returnn_tf.layers.shape.gather import GatherAxes, emit_position, with_batch
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.gather import slices
from returnn_tf.ops.frames.pad import pad_array
from returnn_tf.ops.frames.shape import size_of
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@register_layer("slice")
class SliceLayer(ConcatInputLayer):
    """``x[start:end:step]`` of one axis. A negative end counts from the end of every sequence.

    Lengths: ``ceil((lengths - start - |end|) / step)``, never negative; with an end >= 0, the axis is static.

    Example::

        network = {"output": {"class": "slice", "axis": "T", "slice_start": 1, "slice_step": 2, "from": "data"}}
    """

    joins_features = True
    axis: AxisOption = option(help="the axis to slice")
    slice_start: Optional[int] = option(None, help="index of the first entry, not negative")
    slice_end: Optional[int] = option(None, help="index after the last entry; negative: counted from the end")
    slice_step: Optional[int] = option(None, help="take every n-th entry; -1 reverses the axis")
    out_dim: Optional[Dim] = option(None, help="the new dim")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the axis shorter."""
        data = self.input_template(ctx)
        self.sliced = axis = ctx.axis(data, self.axis)
        if self.slice_step == 0:
            raise ctx.error("slice_step must not be 0.")
        dim = data.dims[axis]
        if dim.is_batch:
            raise ctx.error("the batch axis can't be sliced.")
        new = self._static(ctx, data, dim) if dim.size is not None else self._dynamic(ctx, data, dim)
        return data.with_dim(axis, ctx.bind(self.out_dim, new))

    def _static(self, ctx: PlanContext, data: Data, dim: Dim) -> Dim:
        assert dim.size is not None
        if (self.slice_start or 0) < 0:
            raise ctx.error("slice_start must not be negative, got %d." % self.slice_start)  # type: ignore[str-format]
        size = len(range(dim.size)[self.slice_start : self.slice_end : self.slice_step])
        if size == dim.size and (self.slice_step or 1) == 1:
            return dim
        return ctx.new_feature(size) if self.sliced == data.feature_axis else ctx.new_spatial(size, "slice")

    def _dynamic(self, ctx: PlanContext, data: Data, dim: Dim) -> Dim:
        start, end, step = self.slice_start or 0, self.slice_end, self.slice_step or 1
        if start < 0 or (step < 0 and (start or end is not None)):
            raise ctx.error(
                "of the dynamic axis %s, slice_start must not be negative, and a negative slice_step must come alone. "
                "Use two layers, or gather." % dim
            )
        if end is not None and end >= 0:
            size = len(range(start, end, step))
            return ctx.new_spatial(size, "slice")
        return ((dim - start) - abs(end or 0)).ceildiv_right(abs(step))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one strided slice."""
        x = self.emit_input(ctx)
        data, axis = self.input, self.sliced
        dim, new = data.dims[axis], ctx.output.dims[axis]
        step = self.slice_step or 1
        if dim.is_dynamic and step < 0:
            lens = ctx.lens(dim)
            if lens.shape.rank == 0:
                return tf.reverse(x, [axis])[self._index(None, None, -step)]
            x = tf.reverse_sequence(x, lens, seq_axis=axis, batch_axis=data.batch_axis)
            return x[self._index(None, None, -step)]
        if dim.is_dynamic and new.size is not None:
            # The axis has a fixed size, so missing entries are zero.
            missing = [0] * data.rank
            missing[axis] = tf.maximum(self.slice_end - size_of(x, axis), 0)
            x = pad_array(x, [0] * data.rank, missing)
        x = x[self._index(self.slice_start, self.slice_end, self.slice_step)]
        return tf.ensure_shape(x, [d.size for d in ctx.output.dims]) if new.size is not None else x

    def _index(self, start: Optional[int], end: Optional[int], step: Optional[int]) -> Any:
        return (slice(None),) * self.sliced + (slice(start, end, step),)


@register_layer("slice_nd")
class SliceNdLayer(ConcatInputLayer):
    """``x[start : start + size]`` of one axis, with a start (and a size) for every sequence.

    A start with further axes, e.g. [batch, time], gives a slice for each of its entries, with these axes in front.
    Entries after the end of a sequence are zero (if start is an int, only those after the end of the array).
    Lengths: without size ``max(lengths - start, min_size)``; an int size makes a static axis.

    Example::

        extern_data = {"data": {"dim": 4}, "start": {"shape": (), "dtype": "int32", "time_dim_axis": None}}
        network = {"output": {"class": "slice_nd", "start": "data:start", "size": 3, "from": "data"}}
    """

    start: Union[int, str] = option(help="int, or layer with the index of the first entry", refs=True)
    size: LayerOrSize = option(
        None, help="int, or layer with the sizes; None: until the end of the sequence", refs=True
    )
    min_size: Optional[int] = option(None, help="without size: the slice has at least this size")
    axis: AxisOption = option("T", help="the axis to slice")
    out_spatial_dim: Optional[Dim] = option(None, help="the new dim")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: the axis of the slice in the place of the axis, after those of the start."""
        data = self.input_template(ctx)
        axis = ctx.axis(data, self.axis)
        for what, value in (("start", self.start), ("size", self.size)):
            if isinstance(value, Node) and not is_int(value.output.dtype):
                raise ctx.error("%s must hold integers, but layer %r is %s." % (what, value.path, value.output))
        if isinstance(self.size, int):
            new = ctx.new_spatial(self.size, "slice")
            if axis == data.feature_axis:
                new = ctx.new_feature(self.size)
        elif self.size is None and isinstance(self.start, int) and self.min_size is None:
            new = data.dims[axis] - self.start
        else:
            new = ctx.new_spatial(None, "slice")
        self.new_dim = ctx.bind(self.out_spatial_dim, new)
        position = Data((), "int32")
        if isinstance(self.start, Node):
            position = with_batch(self.start.output, data)
        self.gather = GatherAxes(data, position, axis)
        where = len(self.gather.common) + len(self.gather.before) + len(self.gather.own)
        out = self.gather.output(data).with_axis(where, self.new_dim, feature=data.feature_axis == axis)
        if data.time_axis == axis and out.time_axis is None:
            out = out.replace(time_axis=where)
        return with_feature_default(out.with_time_axis_default())

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one gather."""
        gather = self.gather
        x = gather.arrange_input(ctx, self.emit_input(ctx))
        dim = gather.data.dims[gather.axis]
        if isinstance(self.start, Node):
            start = gather.arrange_position(ctx, emit_position(ctx, self.start, gather.position))
            lens = limit = gather.limits(ctx, dim)
        else:
            start = tf.constant(self.start)
            lens, limit = ctx.lens(dim), size_of(x, gather.rank_before)
        start = tf.cast(start, tf.int32)
        size = self._define_size(ctx, lens - start)
        return slices(x, start, size, limit, axis=gather.rank_before, batch_dims=len(gather.common))

    def _define_size(self, ctx: EmitContext, rest: Any) -> Any:
        """Define the size of the new axis.

        :param rest: number of entries after the start
        """
        if self.new_dim.size is not None or ctx.has_lens(self.new_dim):
            return ctx.size(self.new_dim)
        if isinstance(self.size, Node):
            lens = tf.cast(ctx.value(self.size), tf.int32)
        else:
            lens = tf.maximum(rest, self.min_size or 0)
        size = tf.maximum(tf.reduce_max(tf.concat([tf.reshape(lens, [-1]), [0]], axis=0)), 0)
        if lens.shape.rank > 1:
            lens = tf.reduce_max(lens, axis=list(range(1, lens.shape.rank)))
        ctx.define_lens(self.new_dim, lens, size=size)
        return size
