"""`framewise_statistics`: statistics of a softmax layer in the log."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from returnn_tf.config.options import option
from returnn_tf.graph.after_step.sinks import RunInfo
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.loss import LossContext, LossNode, LossPlanContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import LOSSES, register_layer
from returnn_tf.layers.shared.loop_axis import refuse_in_step
from returnn_tf.logging.levels import STEP_LEVEL
from returnn_tf.logging.log import log
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: Suffixes of the statistics: all frames, those labelled as silence, the others.
_PARTS = ("", "_sil", "_no_sil")


@dataclasses.dataclass(frozen=True, eq=False)
class FramewiseStatisticsPlan(LayerPlan):
    """The plan of `FramewiseStatisticsLayer`.

    :param loss: the cross entropy of the source
    :param target: the layer with the labels
    """

    loss: Any
    target: Node


@register_layer("framewise_statistics")
class FramewiseStatisticsLayer(Planned[FramewiseStatisticsPlan]):
    """Logs the cross entropy, its perplexity, the frame error and a histogram of the probabilities of the true labels.

    For all frames, those whose label is ``sil_label_idx`` ("_sil"), and the others ("_no_sil"): of each batch at log
    level 5, of each pass over a dataset in the end. The source is a softmax layer with a target.
    Output: the int32 scalar 0. Parameters: none. Lengths: none.

    Example::

        network = {
            "p": {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"},
            "output": {"class": "framewise_statistics", "sil_label_idx": 0, "from": "p"}}
    """

    has_sink = True
    sink_per_run = True
    sil_label_idx: int = option(help="the label of silence")
    histogram_num_bins: int = option(20, help="number of bins of the histogram of probabilities")

    def template(self, ctx: PlanContext) -> FramewiseStatisticsPlan:
        """Infer the output: a scalar."""
        data = ctx.single_source()
        refuse_in_step(ctx)
        if self.histogram_num_bins < 1:
            raise ctx.error("histogram_num_bins must be at least 1, got %d." % self.histogram_num_bins)
        if self.source.layer.activation != "softmax" or not self.source.layer.target_names:
            raise ctx.error(
                "the source %r must be a softmax layer with 'target', which has the labels." % self.source.path
            )
        target = ctx.depend(ctx.planner.target_node(ctx.node, self.source.layer.target_names[0]))
        if not target.output.sparse:
            raise ctx.error("the target %r of the source must be labels, but it is %s." % (target.path, target.output))
        if not 0 <= self.sil_label_idx < (data.dim or math.inf):
            raise ctx.error("sil_label_idx %d: there are only %s labels." % (self.sil_label_idx, data.dim))
        loss = LOSSES.get("ce", "framewise_statistics")()
        loss.check(LossPlanContext(self.source, target, ctx.semantics))
        return FramewiseStatisticsPlan(Data((), "int32"), loss, target)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit 0, and pass on the values of the frames."""
        node = LossNode(self.node.path, self.plan.loss, self.plan.target, self.source)
        loss_ctx = LossContext(node, EmitContext(self.source, ctx.lowering))
        frames: Any = self.plan.loss.frames(loss_ctx)
        loss = self.plan.loss.frame_values(loss_ctx, frames)
        mask = tf.ones_like(loss, tf.bool) if frames.mask is None else tf.broadcast_to(frames.mask, tf.shape(loss))
        ctx.set_sink_values({
            "loss": tf.boolean_mask(loss, mask),
            "error": tf.boolean_mask(self.plan.loss.frame_errors(loss_ctx, frames), mask),
            "label": tf.boolean_mask(tf.cast(frames.target, tf.int32), mask),
        })  # fmt: skip
        return tf.constant(0)

    def check_sink(self, run: RunInfo) -> None:
        """Do nothing: it replaces no file."""

    def open_sink(self, run: RunInfo) -> StatisticsSink:
        """Return the statistics of a pass."""
        where = "%s, %r epoch %d" % (self.node.path, run.dataset, run.epoch)
        return StatisticsSink(where, self.sil_label_idx, self.histogram_num_bins)


class StatisticsSink:
    """Sums up the statistics of a pass, and logs them.

    :param where: layer and pass, for the log
    """

    def __init__(self, where: str, silence: int, bins: int) -> None:
        self.path = where
        self._silence = silence
        self._bins = bins
        self._sums = {part: np.zeros(3 + bins) for part in _PARTS}

    def write(self, values: Mapping[str, Any], tags: Sequence[str]) -> None:
        """Add a batch, and log its statistics at log level 5."""
        silent = values["label"] == self._silence
        of_batch = {}
        for part, frames in zip(_PARTS, (np.ones_like(silent), silent, ~silent)):
            loss, error = values["loss"][frames].astype("float64"), values["error"][frames]
            places = np.minimum((np.exp(-loss) * self._bins).astype(int), self._bins - 1)
            counts = np.bincount(places, minlength=self._bins)
            of_batch[part] = np.concatenate([[len(loss), loss.sum(), error.sum()], counts])
            self._sums[part] += of_batch[part]
        if log.shows(STEP_LEVEL):
            log.write(STEP_LEVEL, "%s: %s" % (self.path, self._text("batch", of_batch)))

    def close(self) -> None:
        """Log the statistics of the pass."""
        log.write(3, "%s: %s" % (self.path, self._text("accumulated", self._sums)))

    def abort(self) -> None:
        """Log nothing: the pass is not complete."""

    def _text(self, kind: str, sums: Mapping[str, Any]) -> str:
        found = []
        for part, values in sums.items():
            count = max(values[0], 1.0)
            loss = values[1] / count
            numbers = {
                "seq_length": "%d" % values[0],
                "loss_ce": "%.6g" % loss,
                "loss_perplexity": "%.6g" % math.exp(min(loss, 700.0)),
                "frame_error": "%.6g" % (values[2] / count),
                "true_label_prob_histogram": "[%s]" % " ".join("%.3g" % (n / count) for n in values[3:]),
            }
            found += ["%s_%s%s %s" % (kind, name, part, text) for name, text in numbers.items()]
        return ", ".join(found)
