"""`gradient`: a derivative as a value; `scaled_grad`: the identity with a modified gradient."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import LayerRef, OptionalLayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Layer, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.copy import CopyLayer
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@register_layer("gradient")
class GradientLayer(Layer):
    """``dy / dx`` of a scalar layer y; zero where y does not depend on x.

    No parameters. Lengths: those of x.

    Example::

        network = {
            "a": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
            "y": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "a"},
            "output": {"class": "gradient", "y": "y", "x": "data"}}
    """

    needs_sources = False
    is_derivative = True
    y: LayerRef = option(help="layer with a scalar", refs=True)
    x: LayerRef = option(help="layer to differentiate by", refs=True)

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of x."""
        if self.y.output.rank:
            raise ctx.error("y must be a scalar, but it is %s. Reduce all its axes first." % self.y.output)
        if not self.x.output.dtype.startswith("float"):
            raise ctx.error("there is no derivative with respect to %s, which is not of a float type." % self.x.output)
        output: Data = self.x.output
        return output

    def differentiates_by(self) -> Sequence[Node]:
        """Return x."""
        return [self.x]

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the backward pass."""
        x = ctx.value(self.x)
        return tf.gradients(ctx.value(self.y), x, unconnected_gradients="zero")[0]


@dataclasses.dataclass(frozen=True, eq=False)
class ScaledGradientPlan(LayerPlan):
    """The plan of `ScaledGradientLayer`.

    :param sum_axis: the axis of ``scale_shift_by_sum_over_axis``
    :param clip_axis: the axis of ``clip_max_axis``
    """

    sum_axis: Optional[int]
    clip_axis: Optional[int]


@register_layer("scaled_grad")
class ScaledGradientLayer(CopyLayer, Planned[ScaledGradientPlan]):
    """``y = x``; backward ``dx = scale * dy + shift``.

    With scale_shift_by_sum_over_axis, ``shift`` is multiplied by the sum of ``|dy|`` over that axis. clip_max_axis
    bounds ``dy`` by its maximum along that axis, which has no effect by itself. A negative scale is gradient reversal
    (Ganin & Lempitsky 2015).
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "scaled_grad", "scale": 0.5, "from": "data"}}
    """

    scale: Union[float, OptionalLayerRef] = option(
        help="factor of the gradient: a number, or a layer whose axes the source has", refs=True
    )
    shift: Optional[float] = option(None, help="value to add to the gradient")
    scale_shift_by_sum_over_axis: Optional[AxisOption] = option(None, help="weight shift by the sum over this axis")
    clip_max_axis: Optional[AxisOption] = option(None, help="bound the gradient by its maximum along this axis")

    def template(self, ctx: PlanContext) -> ScaledGradientPlan:
        """Return the template of the input."""
        data = self.copied(ctx)
        sum_axis = clip_axis = None
        if self.scale_shift_by_sum_over_axis is not None:
            sum_axis = ctx.axis(data, self.scale_shift_by_sum_over_axis)
        if self.clip_max_axis is not None:
            clip_axis = ctx.axis(data, self.clip_max_axis)
        if isinstance(self.scale, Node):
            scale = self.scale.output
            if not scale.dtype.startswith("float") or None in match_axes(scale, data):
                raise ctx.error("scale must be floats with axes of the source %s, but it is %s." % (data, scale))
        return ScaledGradientPlan(data, sum_axis, clip_axis)

    def works_by_frame(self) -> bool:
        """Return whether the gradient of a frame does too, and that of padding stays 0."""
        over_frames = self.plan.clip_axis not in (None, self.input.feature_axis)
        return not over_frames and not self.shift and super().works_by_frame()

    def emit(self, ctx: EmitContext) -> Any:
        """Emit identity with its own gradient."""
        scale = self.scale
        if isinstance(scale, Node):
            scale = tf.stop_gradient(ctx.broadcast(scale, self.plan.output))

        def identity(x: Any) -> Any:
            return tf.identity(x), functools.partial(self._backward, scale)

        return tf.custom_gradient(identity)(super().emit(ctx))

    def _backward(self, scale: Any, dy: Any) -> Any:
        if self.plan.clip_axis is not None:
            dy = tf.minimum(dy, tf.reduce_max(dy, axis=self.plan.clip_axis, keepdims=True))
        dx = dy * scale
        if self.shift is not None:
            weight = 1.0
            if self.plan.sum_axis is not None:
                weight = tf.reduce_sum(tf.abs(dy), axis=self.plan.sum_axis, keepdims=True)
            dx += self.shift * weight
        return dx
