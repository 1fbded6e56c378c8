"""`ctc_loss`: connectionist temporal classification as a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.graph.same_labels import SameLabels, same_labels
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.sequence.alignments import ctc
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@register_layer("ctc_loss")
class CtcLossLayer(Layer):
    """``-log p(targets | logits)`` per sequence, summed over all alignments (Graves et al. 2006).

    Sequences with fewer frames than their targets need have the loss 0. Their gradient is 0 too; before behavior
    version 30 it is the softmax itself (as if the sum over the alignments had no gradient).
    Output: [batch]. Parameters: none. Lengths: none.

    Example::

        network = {
            "z": {"class": "linear", "activation": None, "n_out": 4, "from": "data"},
            "output": {"class": "ctc_loss", "logits": "z", "targets": "data:classes", "loss": "as_is"}}
    """

    needs_sources = False
    logits: LayerRef = option(help="layer with unnormalised values, [batch, time, classes with blank]", refs=True)
    targets: LayerRef = option(help="layer or data:key with the labels", refs=True)
    blank_index: int = option(-1, help="index of the blank; -1: the last class")
    max_approx: bool = option(False, help="use the best alignment instead of the sum over all")
    logits_normalized: bool = option(False, help="logits are log probabilities already")
    label_loop: bool = option(True, help="allow a label to span several frames; False: exactly one frame")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: one value per sequence."""
        data, targets = self.logits.output, self.targets.output
        classes = ctx.need_static(ctx.need_feature(data, "logits"), "the class axis of logits")
        if data.rank != 3 or data.batch_axis is None or data.time_axis in (None, data.feature_axis):
            raise ctx.error("logits must have batch, time and classes, but they are %s." % data)
        if not targets.sparse or targets.rank != 2 or targets.time_axis is None or targets.batch_axis is None:
            raise ctx.error("targets must be sparse sequences [batch, time], but they are %s." % targets)
        if not -classes <= self.blank_index < classes:
            raise ctx.error("blank_index %d: there are only %d classes." % (self.blank_index, classes))
        if targets.dim is not None and targets.dim > classes:
            raise ctx.error(
                "logits have %d classes, but the targets %r are of %d labels. It needs one class per label, and one "
                "for the blank." % (classes, self.targets.path, targets.dim)
            )
        return Data((data.dims[data.batch_axis],), ctx.float_dtype)

    def same_labels(self) -> Iterator[SameLabels]:
        """Return that the classes are those of the targets, and the blank."""
        return same_labels(self.logits.output, self.targets.output, self.blank_index)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one native op, or TensorFlow's own, or a loop over time."""
        data, targets = self.logits.output, self.targets.output
        logits = transpose(ctx.value(self.logits), [data.time_axis, data.batch_axis, data.feature_axis])
        batch = tf.shape(logits)[1]
        return ctc(
            logits,
            tf.broadcast_to(ctx.lens(data.dims[data.time_axis]), [batch]),
            transpose(ctx.value(self.targets), [targets.batch_axis, targets.time_axis]),
            tf.broadcast_to(ctx.lens(targets.dims[targets.time_axis]), [batch]),
            blank=self.blank_index % logits.shape[-1],
            max_approx=self.max_approx,
            normalized=self.logits_normalized,
            label_loop=self.label_loop,
            keep_gradient_without_alignment=ctx.behavior_version < 30,
        )
