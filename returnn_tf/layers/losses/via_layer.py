"""`via_layer`: another layer computes the loss and the error signal."""

from __future__ import annotations

from typing import Any, ClassVar, Optional, Union

from returnn_tf.config.errors import TargetError
from returnn_tf.config.options import OptionalLayerRef, option
from returnn_tf.graph.aux_values import OUTPUT_LOSS, PRE_ACTIVATION
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.ops.cross_entropy import with_gradient
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@register_loss("via_layer")
class ViaLayerLoss(Loss):
    """The loss and the gradient given by another layer, e.g. "fast_bw".

    With align_layer, a distribution ``a`` over the labels per frame: the gradient w.r.t. the output y (or the values
    before its activation) is ``y - a``, as for the cross entropy between a softmax and a. With error_signal_layer it
    is the output of that layer. The value is the sum of what that layer gives as its loss per sequence.

    Example::

        network = {
            "p": {"class": "softmax", "n_out": 4, "from": "data"},
            "bw": {
                "class": "fast_bw", "align_target": "ctc", "align_target_key": "classes",
                "input_type": "prob", "from": "p"},
            "output": {
                "class": "copy", "from": "p", "loss": "via_layer",
                "loss_opts": {"loss_wrt_to_act_in": "softmax", "align_layer": "bw"}}}
    """

    needs_target: ClassVar[bool] = False

    error_signal_layer: OptionalLayerRef = option(None, help="layer with the gradient", refs=True)
    align_layer: OptionalLayerRef = option(None, help="layer with the distribution over labels", refs=True)
    loss_wrt_to_act_in: Union[bool, str] = option(
        False, help="gradient w.r.t. the values before the activation; its name, e.g. 'softmax', or True for any"
    )

    def check(self, ctx: LossPlanContext) -> None:
        """Check for exactly one of the layers, with the axes of the output."""
        if (self.error_signal_layer is None) == (self.align_layer is None):
            raise ctx.error("the loss 'via_layer' needs one of the loss_opts align_layer and error_signal_layer.")
        source = self.align_layer or self.error_signal_layer
        missing = [str(d) for d, into in zip(source.output.dims, match_axes(source.output, ctx.output)) if into is None]
        if missing or source.output.rank != ctx.output.rank:
            raise ctx.error(
                "the layer %r must have the axes of the output %s, but it has %s."
                % (source.path, ctx.output, source.output)
            )

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the sequences, with the error signal as gradient."""
        source = self.align_layer or self.error_signal_layer
        losses = ctx.aux(source, OUTPUT_LOSS)
        if losses is None:
            raise TargetError(
                "Layer %r: loss 'via_layer': the layer %r (class %r) has no loss. Name a layer such as 'fast_bw', or "
                "an 'eval' layer with copy_output_loss_from_source_idx."
                % (ctx.node.path, source.path, source.layer.class_name)
            )
        signal = to_layout(ctx.value(source), source.output, ctx.output)
        if self.align_layer is not None:
            signal = ctx.output_value - signal
        mask = ctx.masks(ctx.output, ctx.output.dynamic_axes)
        if mask is not None:
            signal = tf.where(mask, signal, tf.zeros_like(signal))
        signal = tf.stop_gradient(signal)
        return with_gradient(tf.reduce_sum(losses), self._receiver(ctx), lambda grad: signal * grad)

    def _receiver(self, ctx: LossContext) -> Any:
        """Return the values that the gradient is taken with respect to."""
        if not self.loss_wrt_to_act_in:
            return ctx.output_value
        before = ctx.aux(ctx.node, PRE_ACTIVATION)
        wanted = self.loss_wrt_to_act_in
        if before is None or (isinstance(wanted, str) and before.activation != wanted):
            has = "no activation" if before is None else "the activation %r" % (before.activation,)
            raise TargetError(
                "Layer %r: loss 'via_layer': loss_wrt_to_act_in is %r, but the layer has %s. Put the loss on "
                "the layer with that activation." % (ctx.node.path, self.loss_wrt_to_act_in, has)
            )
        return before.values
