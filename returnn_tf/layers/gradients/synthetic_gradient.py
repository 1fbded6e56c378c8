"""`synthetic_gradient`: another layer predicts the gradient."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.gradients.tikhonov_regularization import check_meta_loss
from returnn_tf.layers.math.copy import CopyLayer
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@register_layer("synthetic_gradient")
class SyntheticGradientLayer(CopyLayer):
    """``y = x``; backward, x gets the output of the layer ``gradient`` instead of the true gradient at y.

    In training, the mean squared difference of both is minimised too: the updater applies its gradient, times
    ``meta_loss_scale``, by a second update of the same optimizer in the same step. It is reported, per number in y, and
    not part of the objective (Jaderberg et al. 2017).
    Parameters: none. Lengths: unchanged.

    Example::

        network = {
            "guess": {"class": "linear", "activation": None, "n_out": 4, "from": "data"},
            "output": {"class": "synthetic_gradient", "gradient": "guess", "from": "data"}}
    """

    has_meta_loss = True
    gradient: LayerRef = option(help="layer with the predicted gradient, with the axes of the source", refs=True)
    meta_loss_scale: float = option(1.0, help="weight of the loss in the second update")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the input."""
        data = self.copied(ctx)
        check_meta_loss(ctx, data)
        predicted = self.gradient.output
        if data.unknown or predicted.unknown:
            return data
        if predicted.rank != data.rank or None in match_axes(predicted, data) or predicted.dtype != data.dtype:
            raise ctx.error(
                "the layer 'gradient' %r must have the axes and the dtype of the source %s, but it has %s."
                % (self.gradient.path, data, predicted)
            )
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the identity with its own gradient, and declare the loss in training."""
        predicted = ctx.broadcast(self.gradient, ctx.output)

        def identity(x: Any) -> Any:
            return tf.identity(x), lambda _: predicted

        y = tf.custom_gradient(identity)(super().emit(ctx))
        if ctx.train:
            name = "%s/synthetic_grad" % self.node.path
            scale = self.meta_loss_scale
            ctx.add_meta_loss(MetaLoss(name, y, lambda g: tf.reduce_mean((predicted - g) ** 2), scale, is_mean=True))
        return y
