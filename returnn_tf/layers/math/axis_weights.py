"""`weighted_sum` and `elemwise_prod`: parameters over some axes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes, Padding
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.norm import param_in_layout
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.spatial import check_padding, conv_dim, per_axis, to_lead_form
from returnn_tf.ops.dense.convolution import convolution
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class AxisWeightsPlan(LayerPlan):
    """The plan of `weighted_sum` and `elemwise_prod`.

    :param axes: the axes of the weights, in the input
    :param padding: of a window that slides along them; None: the weights are as long as they are
    """

    axes: Sequence[int]
    padding: Optional[Sequence[Union[str, tuple[int, int]]]] = None


@register_layer("weighted_sum")
class WeightedSumLayer(ConcatInputLayer, Planned[AxisWeightsPlan]):
    """Sum over some axes with a weight for every position, or over a window that slides along these axes.

    Parameters: ``W`` [size per axis], initially all ``1 / number of weights``, so that it starts as the mean.
    Lengths: without ``size`` the axes, which must be static, are removed; with it as in `conv`.

    Example::

        network = {"output": {"class": "weighted_sum", "axes": "F", "from": "data"}}
    """

    axes: Axes = option(help="the axes of the weights, one or a list")
    size: Union[None, int, list[int], tuple[int, ...]] = option(None, help="window per axis; None: the whole axes")
    padding: Optional[Padding] = option(None, help="with size: 'same' or 'valid'")
    keep_dims: Optional[bool] = option(None, help="keep the axes; default: only with size")

    def template(self, ctx: PlanContext) -> AxisWeightsPlan:
        """Infer the output: the axes removed, of size 1, or as long as the window leaves them."""
        data = self.input_template(ctx)
        axes = ctx.axes(data, self.axes)
        if not axes:
            raise ctx.error("axes %r means no axis of %s." % (self.axes, data))
        dims = [data.dims[i] for i in axes]
        padding = check_padding(ctx, self.padding or "valid", len(dims))
        if self.size is None:
            size = [ctx.need_static(d, "an axis that is summed over completely") for d in dims]
        else:
            size = per_axis(ctx, "size", self.size, len(dims))
        keep = self.size is not None if self.keep_dims is None else self.keep_dims
        ctx.param("W", size, 1.0 / math.prod(size))
        is_whole = [d.size for d in dims] == size and "same" not in padding
        if is_whole and not keep:
            return AxisWeightsPlan(data.without_axes(axes), axes)
        for axis, dim, k, pad in zip(axes, dims, size, padding):
            new = conv_dim(dim, k, 1, 1, pad)
            if is_whole:
                new = ctx.new_feature(1) if axis == data.feature_axis else ctx.new_spatial(1, "sum")
            data = data.with_dim(axis, new)
        if not keep:
            raise ctx.error("keep_dims must be True, since the sliding window leaves the axes %s." % data)
        return AxisWeightsPlan(data, axes, None if is_whole else padding)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a matrix-vector product, or a convolution with one channel."""
        x, w = self.emit_input(ctx), ctx.param("W")
        axes = list(self.plan.axes)
        if self.plan.padding is None:
            y = tf.tensordot(x, w, [axes, list(range(len(axes)))])
            return tf.reshape(y, ctx.shape(ctx.output)) if ctx.output.rank == self.input.rank else y
        lead = [i for i in range(self.input.rank) if i not in axes]
        order = lead + axes
        x = to_lead_form(transpose(x, order), len(lead))[..., None]
        y = convolution(x, w[..., None, None], padding=self.plan.padding)
        y = tf.reshape(y, [ctx.size(ctx.output.dims[i]) for i in order])
        return transpose(y, [order.index(i) for i in range(len(order))])


@register_layer("elemwise_prod")
class ElemwiseProdLayer(ConcatInputLayer, Planned[AxisWeightsPlan]):
    """``y = x * W``, where ``W`` has some axes of the source and is the same for all positions in the others.

    Parameters: ``W`` [dims of the axes], initially 1. Lengths: unchanged.

    Example::

        network = {"output": {"class": "elemwise_prod", "axes": "F", "from": "data"}}
    """

    axes: Axes = option(help="the axes of the weights, one or a list; static")
    size: Union[None, int, list[int], tuple[int, ...]] = option(None, help="sizes of these axes, checked")

    def template(self, ctx: PlanContext) -> AxisWeightsPlan:
        """Return the template of the source."""
        data = self.input_template(ctx)
        axes = ctx.axes(data, self.axes)
        if not axes:
            raise ctx.error("axes %r means no axis of %s." % (self.axes, data))
        sizes = [ctx.need_static(data.dims[i], "an axis of the weights") for i in axes]
        if self.size is not None and per_axis(ctx, "size", self.size, len(sizes)) != sizes:
            raise ctx.error("size is %s, but the axes have the sizes %s." % (self.size, sizes))
        ctx.param("W", sizes, 1.0)
        return AxisWeightsPlan(data.replace(vocab=None), axes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one product."""
        return self.emit_input(ctx) * param_in_layout(ctx.param("W"), self.plan.axes, self.input)
