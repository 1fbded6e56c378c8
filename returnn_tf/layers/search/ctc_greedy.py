"""`ctc_greedy`: the labels of the best path of CTC."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.block_end import frame_before
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.graph.same_labels import SameLabels, same_labels
from returnn_tf.layers.search.decide import DECIDED_SCORES
from returnn_tf.ops.activations import clipped_log
from returnn_tf.ops.frames.masking import packed_frames, packed_lens
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_INPUT_TYPES = ("prob", "log_prob", "logits")
#: Activation of a source -> the kind of its values.
_KINDS = {"softmax": "prob", "log_softmax": "log_prob"}


@dataclasses.dataclass(frozen=True, eq=False)
class CtcGreedyPlan(LayerPlan):
    """The plan of `CtcGreedyLayer`.

    :param blank: the class of the blank, from 0
    :param frames: of one class for each frame, [batch, time]
    :param time: the labels of the best path
    """

    blank: int
    frames: Data
    time: Dim


@register_layer("ctc_greedy")
class CtcGreedyLayer(Planned[CtcGreedyPlan]):
    """The labels of the best path of CTC (Graves et al. 2006): the best class of each frame, equal neighbours merged.

    Blanks are left out. A label has the number of its class. In task search it has a score: the log probability of the
    best path, ``sum over t of max_k log p(k | t)``. With ``target`` the labels are those of the target, so that a loss
    ``edit_distance`` counts the errors.
    In an export with state, a label that goes on in the next block of frames is in the first one only.
    Output: [batch, labels], sparse. Parameters: none. Lengths: the numbers of labels.

    Example::

        network = {
            "p": {"class": "softmax", "n_out": 4, "from": "data"},
            "output": {"class": "ctc_greedy", "from": "p"}}
    """

    decides = True
    blank_index: int = option(-1, help="class of the blank; -1: the last one")
    input_type: str = option("prob", choices=_INPUT_TYPES, help="kind of the source values, for the score")

    def template(self, ctx: PlanContext) -> CtcGreedyPlan:
        """Infer the output: label sequences with a new time axis."""
        data = ctx.single_source()
        classes = ctx.need_static(ctx.need_feature(data), "the class axis")
        if data.rank != 3 or data.batch_axis is None or data.time_axis in (None, data.feature_axis):
            raise ctx.error("the source must have batch, time and classes, but it is %s." % data)
        if data.beam is not None:
            raise ctx.error("the source %s has hypotheses of a search. Put a layer 'decide' before it." % data)
        if not -classes <= self.blank_index < classes:
            raise ctx.error("blank_index %d: there are only %d classes." % (self.blank_index, classes))
        activation = ctx.node.sources[0].layer.activation
        kind = _KINDS.get(activation, self.input_type) if isinstance(activation, str) else self.input_type
        if kind != self.input_type:
            raise ctx.error(
                "input_type is %r, but the source has the activation %r: set input_type = %r."
                % (self.input_type, activation, kind)
            )
        blank, time = self.blank_index % classes, ctx.new_spatial(None, "ctc")
        labels = self._labels(ctx, classes, blank)
        batch, frames = data.dims[data.batch_axis], data.dims[data.time_axis or 0]
        output = Data((batch, time), "int32", time_axis=1, sparse_dim=labels)
        return CtcGreedyPlan(output, blank, Data((batch, frames), "int32", time_axis=1), time)

    def _labels(self, ctx: PlanContext, classes: int, blank: int) -> Dim:
        """Return the dim of the labels: that of the target, else all classes, without a blank behind them."""
        name = next(iter(self.target_names), None)
        if name is None:
            return ctx.new_feature(classes - 1 if blank == classes - 1 else classes, "%s:labels" % ctx.node.path)
        labels: Optional[Dim] = ctx.planner.target_data(ctx.node, name).sparse_dim
        if labels is None or labels.size not in (classes - 1, classes):
            count = "no labels" if labels is None else "%s labels" % labels.size
            raise ctx.error(
                "the source has %d classes, but the target %r has %s. It needs one class per label, and one for the "
                "blank, which may be among the labels." % (classes, name, count)
            )
        return labels

    def same_labels(self) -> Iterator[SameLabels]:
        """Return that the classes are the labels, and the blank."""
        yield from same_labels(self.source.output, self.node.output, self.plan.blank)

    def ignores_padding(self) -> bool:
        """Return True: the labels are those of the frames of a sequence."""
        return True

    def emit(self, ctx: EmitContext) -> Any:
        """Emit an argmax, and a gather of the frames in which a label begins."""
        data = self.source.output
        batch, time, feature = data.batch_axis, data.time_axis, data.feature_axis
        assert batch is not None and time is not None and feature is not None
        x = transpose(ctx.source(), [batch, time, feature])
        best = tf.argmax(x, axis=2, output_type=tf.int32)
        numbers = best + 1  # 0 is none: that before the first frame
        before = tf.zeros(tf.shape(best)[:1], tf.int32)
        if self.plan.frames.dims[1].is_dynamic():
            before = frame_before(ctx, self.plan.frames, 1, before, numbers)
        before = tf.concat([before[:, None], numbers], axis=1)[:, :-1]
        begins = tf.logical_and(tf.not_equal(best, self.plan.blank), tf.not_equal(numbers, before))
        valid = ctx.seq_mask_by_batch(data, time) if data.dims[time].is_dynamic() else None
        if valid is not None:
            begins = tf.logical_and(begins, valid)
        ctx.set_aux(self.node, DECIDED_SCORES, _path_scores(x, valid, self.input_type))
        lens = packed_lens(begins)
        size = tf.reduce_max(tf.concat([lens, [0]], axis=0))
        ctx.define_lens(self.plan.time, lens, size=size)
        return tf.gather(best, packed_frames(begins, size), batch_dims=1)


def _path_scores(x: Any, valid: Optional[Any], input_type: str) -> Any:
    """Return the log probability of the best path of each sequence, float32 [batch].

    :param x: [batch, time, classes]
    :param valid: bool [batch, time], false in the padding; None: there is none
    """
    x = tf.cast(x, tf.float32)
    scores = tf.reduce_max(x, axis=2)
    if input_type == "prob":
        scores = clipped_log(scores)
    elif input_type == "logits":
        scores -= tf.reduce_logsumexp(x, axis=2)
    return tf.reduce_sum(scores if valid is None else tf.where(valid, scores, tf.zeros_like(scores)), axis=1)
