"""`pool`: maximum or mean over a sliding window."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, Dims, Padding
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.numbers import need_numbers
from returnn_tf.layers.shared.spatial import Window, bind_spatial, plan_window, to_lead_form
from returnn_tf.ops.dense.pooling import pool
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

Sizes = Union[int, list[int], tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class PoolPlan(LayerPlan):
    """The plan of `PoolLayer`."""

    window: Window


@register_layer("pool")
class PoolLayer(ConcatInputLayer, Planned[PoolPlan]):
    """Maximum or mean over a window that slides along one to three axes, e.g. to shorten sequences.

    The output has the axes [batch, others, spatial, features]; axes that are not in ``in_spatial_dims`` count as batch.
    Padded entries are ignored; frames after the end of a sequence are not, unless ``use_time_mask`` is set.

    No parameters. Lengths: as in `conv`; padding "same" gives ``ceil(n / stride)``, and strides are the pool_size if
    they are not given. "same" places a window of more than two frames by the length of the array, so that a sequence
    gets other values in a batch with another longest length: prefer "same_static".

    Example::

        network = {"output": {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "data"}}
    """

    takes_complex = False
    joins_features = True
    mode: str = option(help="'max' or 'avg'")
    pool_size: Sizes = option(help="window size per axis; determines the number of axes")
    padding: Padding = option("valid", help="'same', 'valid', 'same_static', a number or a pair; or a list of these")
    strides: Optional[Sizes] = option(None, help="strides of the window, one or one per axis (default: pool_size)")
    dilation_rate: Sizes = option(1, help="distance of the frames in the window, one number or one per axis")
    in_spatial_dims: Optional[Axes] = option(
        None, help="axes to move along, one per axis of the window (default: all spatial)"
    )
    out_spatial_dims: Optional[Dims] = option(None, help="the dims of these axes in the output")
    use_channel_first: Union[None, bool, str] = option(
        None, help="order of the axes for the kernel", inert="the fastest layout is chosen"
    )
    use_time_mask: bool = option(False, help="ignore frames after the end of a sequence")

    def template(self, ctx: PlanContext) -> PoolPlan:
        """Infer the output: batch and other axes, spatial axes, features."""
        if self.mode.lower() not in ("max", "avg"):
            raise ctx.error("mode must be 'max' or 'avg', not %r." % self.mode)
        data = self.input_template(ctx)
        need_numbers(ctx, data, "mode %r" % self.mode, floats=self.mode.lower() == "avg")
        window, dims = plan_window(
            ctx, data, self.in_spatial_dims, self.pool_size, self.strides, self.padding, self.dilation_rate, "pool_size"
        )
        new = bind_spatial(ctx, self.out_spatial_dims, dims, window.axes.dims)
        return PoolPlan(window.axes.template(new, self._out_feature(ctx, window.axes.data)), window)

    def remark(self) -> str:
        """Warn if values depend on the longest sequence of the batch."""
        return self.plan.window.remark()

    def _out_feature(self, ctx: PlanContext, data: Data) -> Any:
        dim = ctx.need_feature(data)
        if self.n_out not in (None, dim.size):
            raise ctx.error("n_out is %s, but pooling keeps the %s features. Omit n_out." % (self.n_out, dim.size))
        return ctx.bind(self.out_dim, dim)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one pooling operation."""
        window = self.plan.window
        mask = ctx.masks(window.axes.data, window.axes.spatial) if self.use_time_mask else None
        if mask is not None:
            mask = self._mask_in_op_form(ctx, mask)
        y = pool(
            window.axes.to_op(ctx, self.emit_input(ctx), use_time_mask=False),
            self.mode.lower(),
            window.size,
            strides=window.strides,
            dilations=window.dilations,
            padding=window.padding,
            mask=mask,
        )
        return window.axes.from_op(ctx, y, ctx.output)

    def _mask_in_op_form(self, ctx: EmitContext, mask: Any) -> Any:
        """Bring the mask to [N, spatial..., 1]; axes in which it is constant stay at size 1 unless merged into N."""
        axes, data = self.plan.window.axes, self.plan.window.axes.data
        mask = transpose(mask, axes.order)
        if len(axes.lead) > 1:
            lead = [ctx.size(data.dims[i]) for i in axes.lead]
            mask = tf.broadcast_to(mask, tf.concat([tf.stack(lead), tf.shape(mask)[len(lead) :]], axis=0))
        return to_lead_form(mask, len(axes.lead))
