"""`gradient`: a derivative as a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data
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
