"""`tikhonov_regularization`: a penalty on the gradient at a layer."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.copy import CopyLayer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def check_meta_loss(ctx: PlanContext, data: Data) -> None:
    """Check that the gradient at the output is defined and can be reached.

    :raises ConfigError: in the step of a loop, or without floats
    """
    if ctx.in_step:
        raise ctx.error(
            "can't run step by step in a loop, as its loss is on the gradient of the objective. Put it outside, or let "
            "no 'prev:' depend on it."
        )
    if not data.unknown and not data.dtype.startswith(("float", "bfloat")):
        raise ctx.error("the source %s has no gradient, as it is %s." % (data, data.dtype))


@register_layer("tikhonov_regularization")
class TikhonovRegularizationLayer(CopyLayer):
    """``y = x``; in training, ``0.5 * sum(g ** 2)`` of the gradient g of the objective at y is minimised too.

    The updater applies the gradient of this loss, times ``meta_loss_scale``, by a second update of the same optimizer
    in the same step. It is reported, per number in y, and not part of the objective (Bishop 1995).
    Parameters: ``dummy`` [], without effect. Lengths: unchanged.

    Example::

        network = {"output": {"class": "tikhonov_regularization", "from": "data", "meta_loss_scale": 0.1}}
    """

    has_meta_loss = True
    meta_loss_scale: float = option(1.0, help="weight of the loss in the second update")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the input."""
        data = self.copied(ctx)
        check_meta_loss(ctx, data)
        ctx.param("dummy", (), "glorot_uniform")
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the identity, and declare the loss in training."""
        x = super().emit(ctx)
        y = x + tf.cast(0.0 * ctx.param("dummy"), x.dtype)
        if ctx.train:
            name = "%s/tikhonov_reg" % self.node.path
            ctx.add_meta_loss(MetaLoss(name, y, lambda g: 0.5 * tf.reduce_sum(g**2), self.meta_loss_scale))
        return y
