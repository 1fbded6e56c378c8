"""`layer_norm` and `norm`: normalisation by mean and variance over axes of one frame or sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.reduce import given_axes
from returnn_tf.layers.shared.concat_input import ConcatInputLayer, concat_template
from returnn_tf.ops.frames.shape import expand_at, transpose
from returnn_tf.ops.normalize import layer_norm, moments, normalize
from returnn_tf.tensor import Data


@register_layer("layer_norm")
class LayerNormLayer(ConcatInputLayer):
    """``y = (x - mean) / sqrt(variance + epsilon) * scale + bias`` over the features (Ba et al. 2016).

    Mean and (biased) variance are those of the features of one frame. The axes are kept, with ``in_dim`` also which of
    them is the feature axis.

    Parameters: ``scale`` [features], initially 1, ``bias`` [features], initially 0. Lengths: unchanged.

    Example::

        network = {"output": {"class": "layer_norm", "from": "data"}}
    """

    keeps_features = True
    joins_features = True
    epsilon: float = option(1e-6, help="added to the variance", check=at_least(0))

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        data = self.input_template(ctx)
        dim = ctx.need_feature(data)
        out = ctx.bind(self.out_dim, dim)
        ctx.param("scale", (dim,), 1.0)
        ctx.param("bias", (dim,), 0.0)
        assert data.feature_axis is not None
        source = concat_template(ctx, self.sources)
        marks = {"feature_axis": source.feature_axis, "time_axis": source.time_axis}  # also with in_dim
        return data.with_dim(data.feature_axis, out).replace(vocab=None, **marks)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit moments and one multiply-add."""
        axis = self.input.feature_axis
        assert axis is not None
        x = self.emit_input(ctx)
        if (ctx.train or ctx.lowering.search.in_place) and axis == self.input.rank - 1:
            return layer_norm(x, ctx.param("scale"), ctx.param("bias"), self.epsilon)
        mean, variance = moments(x, [axis])
        others = range(axis + 1, self.input.rank)
        scale, bias = (_behind(ctx.param(name), len(others)) for name in ("scale", "bias"))
        return normalize(x, mean, variance, self.epsilon, scale, bias)

    def works_by_frame(self) -> bool:
        """Return whether the features are the last axis."""
        return self.input.feature_axis == self.input.rank - 1 and self.drops_by_frame()


def _behind(param: Any, count: int) -> Any:
    """Append ``count`` axes of size 1 to those of a parameter."""
    rank = param.shape.rank
    return expand_at(param, range(rank, rank + count))


@dataclasses.dataclass(frozen=True, eq=False)
class NormPlan(LayerPlan):
    """The plan of `NormLayer`.

    :param axes: the axes that mean and variance are over
    :param param_axes: the axes of scale and bias
    """

    axes: Sequence[int]
    param_axes: Sequence[int]


@register_layer("norm")
class NormLayer(ConcatInputLayer, Planned[NormPlan]):
    """``y = (x - mean) / sqrt(variance + epsilon) * scale + bias`` over any axes.

    Mean and (biased) variance are over all frames of the array, those after the end of a sequence too. With axis "F"
    this is layer normalisation (Ba et al. 2016), with time instance normalisation (Ulyanov et al. 2016).

    Parameters: ``scale``, initially 1, and ``bias``, initially 0, both of the shape of the dims of ``param_shape``.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "norm", "axis": ["T", "F"], "from": "data"}}
    """

    joins_features = True
    axis: Optional[Axes] = option(None, help="the axis to normalise over, or a list of axes")
    axes: Optional[Axes] = option(None, help="the same as axis", old="'axis'")
    param_shape: Axes = option("F", help="axes of the parameters")
    scale: bool = option(True, help="whether to multiply by scale")
    bias: bool = option(True, help="whether to add bias")
    epsilon: float = option(1e-6, help="added to the variance", check=at_least(0))

    def template(self, ctx: PlanContext) -> NormPlan:
        """Return the template of the source."""
        data = self.input_template(ctx)
        axes = given_axes(ctx, data, self.axis, self.axes)
        param_axes = ctx.axes(data, self.param_shape)
        if not param_axes:
            raise ctx.error("param_shape %r means no axis of %s." % (self.param_shape, data))
        shape = [data.dims[i] for i in param_axes]
        if self.scale:
            ctx.param("scale", shape, 1.0)
        if self.bias:
            ctx.param("bias", shape, 0.0)
        return NormPlan(data.replace(vocab=None), axes, param_axes)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit moments and one multiply-add."""
        x = self.emit_input(ctx)
        last = [self.input.rank - 1]
        if (ctx.train or ctx.lowering.search.in_place) and list(self.plan.axes) == last == list(self.plan.param_axes):
            scale, bias = (ctx.param(name) if on else None for name, on in (("scale", self.scale), ("bias", self.bias)))
            return layer_norm(x, scale, bias, self.epsilon)
        mean, variance = moments(x, self.plan.axes)
        scale = self._param(ctx, "scale") if self.scale else None
        bias = self._param(ctx, "bias") if self.bias else None
        return normalize(x, mean, variance, self.epsilon, scale, bias)

    def works_by_frame(self) -> bool:
        """Return whether it normalises over the last axis."""
        return list(self.plan.axes) == [self.input.rank - 1] == list(self.plan.param_axes) and self.drops_by_frame()

    def _param(self, ctx: EmitContext, name: str) -> Optional[Any]:
        return param_in_layout(ctx.param(name), self.plan.param_axes, self.input)


def param_in_layout(param: Any, axes: Sequence[int], data: Data) -> Any:
    """Broadcast a parameter over some axes of a layout to the whole layout."""
    param = transpose(param, sorted(range(len(axes)), key=lambda i: axes[i]))
    return expand_at(param, [i for i in range(data.rank) if i not in axes])
