"""Errors on decoded label sequences: `edit_distance` and `bleu`."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.config.options import option
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext, sparse_hint
from returnn_tf.graph.registry import register_loss
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.sequence.bleu import bleu_scores
from returnn_tf.ops.sequence.ctc import greedy_decode
from returnn_tf.ops.sequence.edit_distance import edit_distance
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class DecodedLoss(Loss):
    """Compares label sequences; gives only an error, without gradient."""

    def check(self, ctx: LossPlanContext) -> None:
        """Check for sequences of labels on both sides."""
        assert ctx.target is not None
        if not _is_label_sequence(ctx.target):
            raise ctx.error(
                "the loss %r needs a sparse target [batch, time], but %r is %s.%s"
                % (self.class_name, ctx.target_name, ctx.target, sparse_hint(ctx))
            )
        self.check_output(ctx)

    def check_output(self, ctx: LossPlanContext) -> None:
        """Check that the output is a sequence of labels."""
        if not _is_label_sequence(ctx.output):
            raise ctx.error(
                "the loss %r compares sequences of labels [batch, time], but the output is %s. Put the loss on the "
                "layer that decodes, e.g. 'decide', or reduce the scores by mode 'argmax'."
                % (self.class_name, ctx.output)
            )

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Return None: there is only the error."""
        return None

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the sequences."""
        return tf.reduce_sum(self.compare(ctx))

    def unreduced_template(self, output: Data, float_dtype: str) -> Data:
        """Return the template [batch]."""
        assert output.batch_axis is not None
        return Data((output.dims[output.batch_axis],), float_dtype)

    def unreduced(self, ctx: LossContext, *, error: bool = False) -> Any:
        """Return the value of each sequence, [batch]."""
        return self.compare(ctx)

    def compare(self, ctx: LossContext) -> Any:
        """Compute the error of each sequence, float [batch]."""
        raise AssertionError("%s has no compare()" % type(self).__name__)


@register_loss("edit_distance")
class EditDistanceLoss(DecodedLoss):
    """Error: minimum number of insertions, deletions and substitutions (Levenshtein 1966), summed over the sequences.

    Example::

        extern_data = {"data": {"dim": 3, "sparse": True}, "classes": {"dim": 3, "sparse": True}}
        network = {"output": {"class": "copy", "from": "data", "loss": "edit_distance", "target": "classes"}}
    """

    debug_print: bool = option(False, help="print both sequences")
    label_map: Optional[dict[int, int]] = option(
        None, help="{label: replacement} for output and target before comparing"
    )
    ctc_decode: bool = option(False, help="the output holds scores with a blank as last class; decode them as CTC")
    output_in_log_space: bool = option(
        False, help="whether these scores are logarithms", inert="the best class of a frame is the same"
    )

    def check_output(self, ctx: LossPlanContext) -> None:
        """Check for labels, or for scores with ctc_decode."""
        output = ctx.output
        if not self.ctc_decode:
            super().check_output(ctx)
        elif output.sparse or output.rank != 3 or output.feature_axis is None or output.time_axis is None:
            raise ctx.error("with ctc_decode the output must be scores [batch, time, classes], but it is %s." % output)

    def compare(self, ctx: LossContext) -> Any:
        """Compute edit distances."""
        if self.ctc_decode:
            hyps, hyp_lens = self._decoded(ctx)
        else:
            hyps, hyp_lens = _labels(ctx.output_value, ctx.output), ctx.lens(ctx.output)
        refs, ref_lens = _labels(ctx.target_value, ctx.target), ctx.lens(ctx.target)
        hyps, refs = self._mapped(hyps, ctx.output), self._mapped(refs, ctx.target)
        if self.debug_print:
            with tf.control_dependencies(
                [tf.print(ctx.node.path, hyps, hyp_lens, "target:", refs, ref_lens, summarize=-1)]
            ):
                hyps = tf.identity(hyps)
        return edit_distance(hyps, hyp_lens, refs, ref_lens)

    def _decoded(self, ctx: LossContext) -> tuple[Any, Any]:
        output = ctx.output
        scores = transpose(ctx.output_value, [output.time_axis, output.batch_axis, output.feature_axis])  # type: ignore[list-item]
        decoded = greedy_decode(scores, ctx.lens(output))
        counts = tf.math.bincount(tf.cast(decoded.indices[:, 0], tf.int32), minlength=tf.shape(scores)[1])
        return tf.cast(tf.sparse.to_dense(decoded), tf.int32), counts

    def _mapped(self, labels: Any, data: Data) -> Any:
        """Map labels by ``label_map``."""
        if not self.label_map:
            return labels
        top = max([data.dim or 0, *(k + 1 for k in self.label_map)])
        table = np.arange(top, dtype="int32")
        for label, other in self.label_map.items():
            table[label] = other
        return tf.gather(table, tf.clip_by_value(labels, 0, top - 1))


@register_loss("bleu")
class BleuLoss(DecodedLoss):
    """Error: minus the BLEU score with n-grams up to 4 (Papineni et al. 2002) of each sequence, summed.

    Example::

        extern_data = {"data": {"dim": 3, "sparse": True}, "classes": {"dim": 3, "sparse": True}}
        network = {"output": {"class": "copy", "from": "data", "loss": "bleu", "target": "classes"}}
    """

    def compare(self, ctx: LossContext) -> Any:
        """Compute BLEU times -1."""
        hyps, refs = _labels(ctx.output_value, ctx.output), _labels(ctx.target_value, ctx.target)
        return -bleu_scores(hyps, ctx.lens(ctx.output), refs, ctx.lens(ctx.target))


def _is_label_sequence(data: Data) -> bool:
    return data.sparse and data.rank == 2 and data.time_axis is not None and data.batch_axis is not None


def _labels(x: Any, data: Data) -> Any:
    """Return labels as int32 [batch, time]."""
    return tf.cast(transpose(x, [data.batch_axis, data.time_axis]), tf.int32)  # type: ignore[list-item]
