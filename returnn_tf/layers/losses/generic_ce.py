"""`generic_ce`: cross entropy for scores of any elementwise activation."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.aux_values import PRE_ACTIVATION, PreActivation
from returnn_tf.graph.loss import LossContext, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.layers.losses.framewise import Frames, FramewiseLoss
from returnn_tf.ops.activations import get_activation, is_over_features, safe_log
from returnn_tf.ops.cross_entropy import with_gradient
from returnn_tf.util.lazy_tf import tf


@register_loss("generic_ce")
class GenericCrossEntropyLoss(FramewiseLoss):
    """``-log p[label]`` with ``p = y / sum_k y[k]`` for positive ``y = f(x)``, f elementwise, summed over the frames.

    The gradient w.r.t. x is ``(p - t) d(log y)/dx`` with t one-hot. It is not scaled: the factors loss_scale, scale
    and use_normalized_loss change the reported objective, not this gradient.
    Error: as for "ce".

    Example::

        network = {"output": {
            "class": "linear", "activation": "sigmoid", "from": "data", "loss": "generic_ce", "target": "classes"}}
    """

    def check(self, ctx: LossPlanContext) -> None:
        """Check for labels, and for an activation that does not normalise over the features."""
        super().check(ctx)
        assert ctx.target is not None
        if not ctx.target.sparse:
            raise ctx.error(
                "the loss 'generic_ce' needs labels, but the target %r is dense: %s." % (ctx.target_name, ctx.target)
            )
        activation = ctx.node.layer.activation
        if is_over_features(activation) or ctx.node.layer.normalizes_features:
            raise ctx.error(
                "the loss 'generic_ce' is for elementwise activations such as 'sigmoid' or 'exp', but this layer has "
                "%r. Use the loss 'ce'." % activation
            )

    def frame_values(self, ctx: LossContext, frames: Frames) -> Any:
        """Compute value and gradient by formula."""
        before = ctx.aux(ctx.node, PRE_ACTIVATION) or PreActivation(ctx.output_value, None)
        x, activation = before.values, before.activation
        x = frames.arrange(x)
        labels = frames.zero_padded(frames.target)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = get_activation(activation)(x)
            log_y = safe_log(y)
        slope = tape.gradient(log_y, x)
        probs = y / tf.maximum(tf.reduce_sum(y, axis=-1, keepdims=True), tf.cast(1e-20, y.dtype))
        values = -tf.gather(safe_log(probs), labels, batch_dims=labels.shape.rank)
        gradient = slope * (probs - tf.one_hot(labels, x.shape[-1], dtype=x.dtype))
        if frames.mask is not None:
            gradient = tf.where(frames.mask[..., None], gradient, tf.zeros_like(gradient))
        return with_gradient(values, x, lambda _: gradient)
