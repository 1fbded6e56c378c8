"""`pool`: maximum or mean over a sliding window."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
from returnn_tf.layers.shared.spatial import (
    SpatialAxes,
    bind_spatial,
    check_padding,
    conv_dim,
    fixed_padding,
    per_axis,
    remark_on_padding,
    spatial_axes,
    to_lead_form,
)
from returnn_tf.ops.dense.pooling import pool
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

Sizes = Union[int, list[int], tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class PoolPlan(LayerPlan):
    """The plan of `PoolLayer`.

    :param spatial: where the axes are that the window moves along
    :param size: of the window, per axis
    :param strides: per axis
    :param dilations: per axis
    :param padding: per axis: "same", "valid", or the frames in front and behind
    """

    spatial: SpatialAxes
    size: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    padding: Sequence[Union[str, tuple[int, int]]]


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
        count = 1 if isinstance(self.pool_size, int) else len(self.pool_size)
        if not 1 <= count <= 3:
            raise ctx.error("pool_size must have 1 to 3 entries, got %r." % (self.pool_size,))
        spatial = spatial_axes(ctx, data, self.in_spatial_dims, count, "pool_size")
        size = per_axis(ctx, "pool_size", self.pool_size, count)
        strides = per_axis(ctx, "strides", size if self.strides is None else self.strides, count)
        dilations = per_axis(ctx, "dilation_rate", self.dilation_rate, count)
        given = check_padding(ctx, self.padding, count)
        steps = list(zip(size, strides, dilations))
        padding = [fixed_padding(d, p, *step) for d, p, step in zip(spatial.dims, given, steps)]
        dims = [conv_dim(d, *step, p) for d, p, step in zip(spatial.dims, given, steps)]
        return PoolPlan(
            spatial.template(
                bind_spatial(ctx, self.out_spatial_dims, dims, spatial.dims), self._out_feature(ctx, spatial.data)
            ),
            spatial=spatial,
            size=size,
            strides=strides,
            dilations=dilations,
            padding=padding,
        )

    def remark(self) -> str:
        """Warn if values depend on the longest sequence of the batch."""
        return remark_on_padding(
            self.plan.spatial.dims, self.plan.padding, self.plan.size, self.plan.strides, self.plan.dilations
        )

    def _out_feature(self, ctx: PlanContext, data: Data) -> Any:
        dim = ctx.need_feature(data)
        if self.n_out not in (None, dim.size):
            raise ctx.error("n_out is %s, but pooling keeps the %s features. Omit n_out." % (self.n_out, dim.size))
        return ctx.bind(self.out_dim, dim)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one pooling operation."""
        data = self.plan.spatial.data
        mask = ctx.masks(data, self.plan.spatial.spatial) if self.use_time_mask else None
        if mask is not None:
            mask = self._mask_in_op_form(ctx, mask)
        y = pool(
            self.plan.spatial.to_op(ctx, self.emit_input(ctx), use_time_mask=False),
            self.mode.lower(),
            self.plan.size,
            strides=self.plan.strides,
            dilations=self.plan.dilations,
            padding=self.plan.padding,
            mask=mask,
        )
        return self.plan.spatial.from_op(ctx, y, ctx.output)

    def _mask_in_op_form(self, ctx: EmitContext, mask: Any) -> Any:
        """Bring the mask to [N, spatial..., 1]; axes in which it is constant stay at size 1 unless merged into N."""
        axes, data = self.plan.spatial, self.plan.spatial.data
        mask = transpose(mask, axes.order)
        if len(axes.lead) > 1:
            lead = [ctx.size(data.dims[i]) for i in axes.lead]
            mask = tf.broadcast_to(mask, tf.concat([tf.stack(lead), tf.shape(mask)[len(lead) :]], axis=0))
        return to_lead_form(mask, len(axes.lead))
