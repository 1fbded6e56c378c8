"""`transducer_loss`: the full-sum loss of a transducer as a layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.graph.same_labels import SameLabels, same_labels
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.sequence.alignments import transducer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class TransducerLossPlan(LayerPlan):
    """The plan of `TransducerLossLayer`.

    :param axes: order of the axes of the logits: batch, frames, labels, classes
    """

    axes: Sequence[Any]


@register_layer("transducer_loss")
class TransducerLossLayer(Planned[TransducerLossPlan]):
    """``-log p(targets | logits)`` per sequence, summed over all alignments (Graves 2012, arXiv 1211.3711).

    The logits have, for each frame and each number of labels so far, a value for each label and for the blank, which
    advances to the next frame. The label axis is one longer than the targets: pad whatever derives from the targets by
    one in front. With ``label_takes_frame`` a label advances to the next frame too (Sak et al. 2017).
    Sequences without an alignment have the loss 0, and no gradient.
    Output: [batch]. Parameters: none. Lengths: none.

    Example::

        network = {
            "encoder": {"class": "linear", "activation": None, "n_out": 4, "from": "data"},
            "embedding": {"class": "linear", "activation": None, "n_out": 4, "from": "data:classes"},
            "labels": {"class": "pad", "axes": "T", "padding": (1, 0), "from": "embedding"},
            "joint": {
                "class": "combine", "kind": "add", "from": ["encoder", "labels"],
                "allow_broadcast_all_sources": True},
            "output": {
                "class": "transducer_loss", "logits": "joint", "targets": "data:classes", "loss": "as_is"}}
    """

    needs_sources = False
    logits: LayerRef = option(help="layer with unnormalised values [batch, time, labels + 1, classes]", refs=True)
    targets: LayerRef = option(help="layer or data:key with the labels", refs=True)
    label_axis: Optional[Axis] = option(
        None, help="axis of the logits for the number of labels so far; default: that of targets"
    )
    blank_index: int = option(-1, help="index of the blank; -1: the last class")
    label_takes_frame: bool = option(False, help="a frame has exactly one label or the blank")
    logits_normalized: bool = option(False, help="logits are log probabilities already")

    def template(self, ctx: PlanContext) -> TransducerLossPlan:
        """Infer the output: one value per sequence."""
        data, targets = self.logits.output, self.targets.output
        classes = ctx.need_static(ctx.need_feature(data, "logits"), "the class axis of logits")
        if data.rank != 4 or data.batch_axis is None:
            raise ctx.error("logits must have batch, time, labels + 1 and classes, but they are %s." % data)
        if not targets.sparse or targets.rank != 2 or targets.time_axis is None or targets.batch_axis is None:
            raise ctx.error("targets must be sparse sequences [batch, time], but they are %s." % targets)
        if not -classes <= self.blank_index < classes:
            raise ctx.error("blank_index %d: there are only %d classes." % (self.blank_index, classes))
        if targets.dim is not None and targets.dim > classes:
            raise ctx.error("logits have %d classes, but the targets %r are of %d labels."
                            % (classes, self.targets.path, targets.dim))  # fmt: skip
        label_axis = self._label_axis(ctx)
        (time_axis,) = set(range(4)) - {data.batch_axis, data.feature_axis, label_axis}
        axes = [data.batch_axis, time_axis, label_axis, data.feature_axis]
        return TransducerLossPlan(Data((data.dims[data.batch_axis],), ctx.float_dtype), axes)

    def _label_axis(self, ctx: PlanContext) -> int:
        data, dim = self.logits.output, self.targets.output.time_dim
        if self.label_axis is not None:
            axis = ctx.axis(data, self.label_axis)
            if axis in (data.batch_axis, data.feature_axis):
                raise ctx.error("label_axis %r is the batch or class axis of %s." % (self.label_axis, data))
            return axis
        found = [axis for axis, own in enumerate(data.dims) if own in (dim + 1, 1 + dim)]
        if len(found) != 1:
            raise ctx.error(
                "the logits %s must have one axis that is one longer than the targets %s. Pad what derives from the "
                "targets by (1, 0), or name the axis with label_axis." % (data, self.targets.output)
            )
        return found[0]

    def same_labels(self) -> Iterator[SameLabels]:
        """Return that the classes are those of the targets, and the blank."""
        return same_labels(self.logits.output, self.targets.output, self.blank_index)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one native op, or a loop over all frames and labels."""
        data, targets = self.logits.output, self.targets.output
        logits = transpose(ctx.value(self.logits), self.plan.axes)
        batch = tf.shape(logits)[0]
        labels = transpose(ctx.value(self.targets), [targets.batch_axis, targets.time_axis])
        check = tf.debugging.assert_equal(
            tf.shape(logits)[2], tf.shape(labels)[1] + 1,
            "Layer %r: the axis of the labels of logits must be one longer than targets" % ctx.node.path,
        )  # fmt: skip
        with tf.control_dependencies([check] if check is not None else []):
            labels = tf.identity(labels)
        return transducer(
            logits,
            tf.broadcast_to(ctx.lens(data.dims[self.plan.axes[1]]), [batch]),
            labels,
            tf.broadcast_to(ctx.lens(targets.dims[targets.time_axis]), [batch]),
            blank=self.blank_index % logits.shape[-1],
            label_takes_frame=self.label_takes_frame,
            normalized=self.logits_normalized,
        )
