"""`shift_axis`: all frames shifted to the left or to the right."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shape.prefix_postfix import frame_axis
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.windows import axis_slice
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftAxisPlan(LayerPlan):
    """The plan of `ShiftAxisLayer`.

    :param axis: the shifted one
    """

    axis: int


@register_layer("shift_axis")
class ShiftAxisLayer(ConcatInputLayer, Planned[ShiftAxisPlan]):
    """``y[t] = x[t - amount]``: frames shifted to the right by ``amount``, or to the left if it is negative.

    With ``pad`` the array keeps its size and frames without a source get ``pad_value``; without it the frames shifted
    out are cut, and the array gets shorter by ``|amount|``.

    No parameters. Lengths: ``n + amount``, between 0 and the size of the array; unchanged without adjust_size_info.
    A static axis keeps its size with ``pad``, and is shorter by ``|amount|`` without it.

    Example::

        network = {"output": {"class": "shift_axis", "axis": "T", "amount": 1, "from": "data"}}
    """

    axis: Axis = option(help="the axis to shift along")
    amount: int = option(help="number of frames; negative: to the left")
    pad: bool = option(True, help="keep the size of the array")
    pad_value: Union[None, int, float, bool] = option(None, help="value of the frames added by pad (default 0)")
    adjust_size_info: bool = option(True, help="adjust the lengths; False: keep them")

    def template(self, ctx: PlanContext) -> ShiftAxisPlan:
        """Infer the output, possibly with a new dim."""
        data = self.input_template(ctx)
        axis = frame_axis(ctx, data, self.axis)
        dim = self._new_dim(ctx, data.dims[axis], is_feature=axis == data.feature_axis)
        return ShiftAxisPlan(data.with_dim(axis, ctx.bind(self.out_dim, dim)), axis)

    def _new_dim(self, ctx: PlanContext, dim: Dim, *, is_feature: bool) -> Dim:
        if self.amount == 0:
            return dim
        if dim.size is None:
            return dim if self.pad and not self.adjust_size_info else ctx.new_spatial(None, "shifted")
        if self.pad:
            if self.adjust_size_info:
                raise ctx.error(
                    "the static axis %s keeps its size with pad. Set adjust_size_info to False, or pad to False." % dim
                )
            return dim
        size = max(dim.size - abs(self.amount), 0)
        return ctx.new_feature(size) if is_feature else ctx.new_spatial(size, "shifted")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a slice, and with pad a concatenation."""
        x, axis, amount = self.emit_input(ctx), self.plan.axis, self.amount
        if amount == 0:
            return x
        dim, out_dim = self.input.dims[axis], ctx.output.dims[axis]
        frames = ctx.size(dim)
        moved = min(abs(amount), frames) if isinstance(frames, int) else tf.minimum(abs(amount), frames)
        y = axis_slice(x, axis, 0, frames - moved) if amount > 0 else axis_slice(x, axis, moved, frames)
        size = frames if self.pad else frames - moved
        if self.pad:
            value = 0 if self.pad_value is None else self.pad_value
            y = pad_axis(y, axis, moved, 0, value) if amount > 0 else pad_axis(y, axis, 0, moved, value)
        if out_dim is not dim and out_dim.size is None:
            lens = ctx.lens(dim) + (amount if self.adjust_size_info else 0)
            ctx.define_lens(out_dim, tf.clip_by_value(lens, 0, size), size=size)
        return y
