"""`gradient` and `synthetic_gradient`: derivatives as values, and values as derivatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from returnn_tf.layers.base import Layer
from returnn_tf.layers.copy import CopyLayer
from returnn_tf.layers.options import option
from returnn_tf.layers.registry import register_layer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext
    from returnn_tf.layers.plan_context import PlanContext


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
    y: Any = option(help="layer with a scalar", refs=True)
    x: Any = option(help="layer to differentiate by", refs=True)

    def template(self, ctx: "PlanContext") -> Data:
        """That of x."""
        if self.y.output.rank:
            raise ctx.error("y must be a scalar, but it is %s. Reduce all its axes first." % self.y.output)
        if not self.x.output.dtype.startswith("float"):
            raise ctx.error("there is no derivative by %s, which is not of a float type." % self.x.output)
        return self.x.output

    def emit(self, ctx: "EmitContext") -> Any:
        """The backward pass."""
        x = ctx.value(self.x)
        return tf.gradients(ctx.value(self.y), x, unconnected_gradients="zero")[0]


@register_layer("synthetic_gradient")
class SyntheticGradientLayer(CopyLayer):
    """``y = x``; backward ``dx`` is the value of another layer (Jaderberg et al. 2017, decoupled neural interfaces).

    The layer ``gradient`` gets no gradient from here: train it by a loss of its own. No parameters. Lengths: unchanged.

    Example::

        network = {
            "g": {"class": "linear", "activation": None, "n_out": 4, "from": "data"},
            "output": {"class": "synthetic_gradient", "gradient": "g", "from": "data"}}
    """

    gradient: Any = option(help="layer that predicts the gradient", refs=True)
    meta_loss_scale: float = option(1.0, help="weight of the loss of the prediction; no part of the plain gradient")

    def template(self, ctx: "PlanContext") -> Data:
        """That of the input."""
        data = super().template(ctx)
        given = self.gradient.output
        if given.rank != data.rank or given.dim != data.dim:
            raise ctx.error("gradient has %s, but the source has %s. Give both the same dims." % (given, data))
        return data

    def emit(self, ctx: "EmitContext") -> Any:
        """Identity with the predicted gradient."""
        predicted = ctx.broadcast(self.gradient, ctx.output)

        @tf.custom_gradient
        def identity(x: Any, dx: Any) -> Any:
            return tf.identity(x), lambda dy: (dx, tf.zeros_like(dx))

        return identity(super().emit(ctx), predicted)
