"""`bin_ce`: binary cross entropy."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.loss import LossContext, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.layers.losses.framewise import Frames, FramewiseLoss
from returnn_tf.util.lazy_tf import tf


@register_loss("bin_ce", "sse_sigmoid")
class BinaryCrossEntropyLoss(FramewiseLoss):
    """``-mean_k (w t[k] log s[k] + (1 - t[k]) log(1 - s[k]))`` with ``s = sigmoid(output)``, summed over the frames.

    The output holds values before the sigmoid, so the layer has no activation. The targets are in [0, 1]; w is
    pos_weight.
    Error: the mean over the features of ``s > 0.5`` differing from the target, summed over the frames.

    Example::

        extern_data = {"data": {"dim": 4}, "target": {"dim": 3}}
        network = {"output": {
            "class": "linear", "activation": None, "from": "data", "loss": "bin_ce", "target": "target"}}
    """

    pos_weight: Optional[float] = option(None, help="weight of the features whose target is 1")

    def check(self, ctx: LossPlanContext) -> None:
        """Check that the target has one number per feature."""
        super().check(ctx)
        assert ctx.target is not None
        if ctx.target.sparse:
            raise ctx.error(
                "the loss 'bin_ce' needs a dense target with a number in [0, 1] per feature, but %r holds labels: "
                "%s. For one label per frame use the loss 'ce'." % (ctx.target_name, ctx.target)
            )

    def frame_values(self, ctx: LossContext, frames: Frames) -> Any:
        """Compute the mean over the features."""
        logits = frames.arrange(ctx.output_value)
        targets = tf.cast(frames.target, logits.dtype)
        if self.pos_weight is None:
            values = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
        else:
            values = tf.nn.weighted_cross_entropy_with_logits(labels=targets, logits=logits, pos_weight=self.pos_weight)
        return tf.reduce_mean(values, axis=-1)

    def frame_errors(self, ctx: LossContext, frames: Frames) -> Optional[Any]:
        """Compute the mean over the features."""
        logits = frames.arrange(ctx.output_value)
        wrong = tf.not_equal(logits > 0, tf.cast(frames.target, logits.dtype) > 0.5)
        return tf.reduce_mean(tf.cast(wrong, ctx.float_dtype), axis=-1)
