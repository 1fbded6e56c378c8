"""`tikhonov_regularization`: the identity, with the parameter of its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from returnn_tf.layers.copy import CopyLayer
from returnn_tf.layers.options import option
from returnn_tf.layers.registry import register_layer
from returnn_tf.tensor import Data

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext
    from returnn_tf.layers.plan_context import PlanContext


@register_layer("tikhonov_regularization")
class TikhonovRegularizationLayer(CopyLayer):
    """``y = x``. The penalty on the derivative is no part of the plain gradient, and is not added to it here.

    Parameters: ``dummy``, a scalar without use. Lengths: unchanged.

    Example::

        network = {"output": {"class": "tikhonov_regularization", "from": "data"}}
    """

    meta_loss_scale: float = option(1.0, help="weight of the penalty")

    def template(self, ctx: "PlanContext") -> Data:
        """That of the input."""
        ctx.param("dummy", [], 0.0)
        return super().template(ctx)

    def emit(self, ctx: "EmitContext") -> Any:
        """The parameter is used, with zero weight, so that it has a gradient."""
        return super().emit(ctx) + 0.0 * ctx.param("dummy")
