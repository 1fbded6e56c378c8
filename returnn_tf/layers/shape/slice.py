"""`slice`: the same part of an axis for all sequences."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.pad import pad_array
from returnn_tf.ops.frames.shape import size_of, with_sizes
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class SlicePlan(LayerPlan):
    """The plan of `SliceLayer`.

    :param axis: the sliced one
    """

    axis: int


@register_layer("slice")
class SliceLayer(ConcatInputLayer, Planned[SlicePlan]):
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

    def template(self, ctx: PlanContext) -> SlicePlan:
        """Infer the output: the axis shorter."""
        data = self.input_template(ctx)
        axis = ctx.axis(data, self.axis)
        if self.slice_step == 0:
            raise ctx.error("slice_step must not be 0.")
        dim = data.dims[axis]
        if dim.is_batch:
            raise ctx.error("the batch axis can't be sliced.")
        new = self._static(ctx, data, axis) if dim.size is not None else self._dynamic(ctx, dim)
        return SlicePlan(data.with_dim(axis, ctx.bind(self.out_dim, new)), axis)

    def _static(self, ctx: PlanContext, data: Data, axis: int) -> Dim:
        dim = data.dims[axis]
        assert dim.size is not None
        if (self.slice_start or 0) < 0:
            raise ctx.error("slice_start must not be negative, got %d." % self.slice_start)  # type: ignore[str-format]
        size = len(range(dim.size)[self.slice_start : self.slice_end : self.slice_step])
        if size == dim.size and (self.slice_step or 1) == 1:
            return dim
        return ctx.new_feature(size) if axis == data.feature_axis else ctx.new_spatial(size, "slice")

    def _dynamic(self, ctx: PlanContext, dim: Dim) -> Dim:
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
        data, axis = self.input, self.plan.axis
        dim, new = data.dims[axis], ctx.output.dims[axis]
        step = self.slice_step or 1
        if dim.is_dynamic() and step < 0:
            lens = ctx.lens(dim)
            if lens.shape.rank == 0:
                return tf.reverse(x, [axis])[self._index(None, None, -step)]
            x = tf.reverse_sequence(x, lens, seq_axis=axis, batch_axis=data.batch_axis)
            return x[self._index(None, None, -step)]
        if dim.is_dynamic() and new.size is not None:
            # The axis has a fixed size, so missing entries are zero.
            missing = [0] * data.rank
            missing[axis] = tf.maximum(self.slice_end - size_of(x, axis), 0)
            x = pad_array(x, [0] * data.rank, missing)
        x = x[self._index(self.slice_start, self.slice_end, self.slice_step)]
        return with_sizes(x, [d.size for d in ctx.output.dims]) if new.size is not None else x

    def _index(self, start: Optional[int], end: Optional[int], step: Optional[int]) -> Any:
        return (slice(None),) * self.plan.axis + (slice(start, end, step),)
