"""`ctc`: connectionist temporal classification."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.errors import CtcError
from returnn_tf.config.options import option
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext, sparse_hint
from returnn_tf.graph.registry import register_loss
from returnn_tf.ops.activations import safe_log
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.sequence.alignments import ctc
from returnn_tf.ops.sequence.ctc import (
    beam_decode,
    blank_last,
    greedy_decode,
    labels_without_blank,
    needed_frames,
)
from returnn_tf.ops.sequence.ctc_variants import softmax_gradient
from returnn_tf.ops.sequence.edit_distance import sparse_edit_distance, sparse_sequences
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class CtcOptions:
    """The options in ``ctc_opts``."""

    ignore_longer_outputs_than_inputs: bool = option(False, help="ignore sequences with too long targets")
    ctc_merge_repeated: bool = option(True, help="allow a label to span several frames")
    label_loop: bool = option(True, help="the same as ctc_merge_repeated")
    preprocess_collapse_repeated: bool = option(False, help="merge equal neighbours in the target")
    logits_normalize: bool = option(True, help="apply a softmax to the scores")
    grad_wrt_softmax_in: bool = option(
        True,
        help="without logits_normalize: whether the scores get the gradient softmax(scores) - alignment; False: the "
        "true one, - alignment",
    )
    blank_index: int = option(-1, help="class of the blank; -1: the last one")
    max_approx: bool = option(False, help="use the best alignment instead of the sum over all")


@dataclasses.dataclass
class _Sequences:
    """The inputs shared by value and error. Scores are time-major, all lengths [batch]."""

    logits: Any
    lens: Any
    labels: Any
    label_lens: Any


@register_loss("ctc")
class CtcLoss(Loss):
    """``-log p(target | output)`` summed over the sequences, where p sums over all alignments (Graves et al. 2006).

    The output has one class more than the target has labels: the blank, which is the last one. n_out follows from the
    target.
    Error: edit distance between target and decoded output, by beam search; in training by the best class per frame.
    A target that needs more frames than there are (one per label, and a blank between equal ones) is an error, unless
    ``ctc_opts`` has ``ignore_longer_outputs_than_inputs``: then such sequences have no loss.

    Example::

        network = {"output": {"class": "softmax", "from": "data", "loss": "ctc", "target": "classes"}}
    """

    has_blank = True
    beam_width: int = option(100, help="beam width of the search for the error")
    ctc_opts: Optional[dict[str, Any]] = option(None, help="variants of the topology", group=CtcOptions)
    output_in_log_space: bool = option(False, help="the layer outputs log probabilities")
    use_native: bool = option(False, help="ignore sequences with too long targets instead of raising an error")
    use_viterbi: bool = option(False, help="use the best alignment instead of the sum over all")
    auto_clip_target_len: bool = option(False, help="cut targets to the number of frames - 1")
    target_collapse_repeated: bool = option(False, help="merge equal neighbours in the target")

    def check(self, ctx: LossPlanContext) -> None:
        """Check for sequences on both sides, and one class for the blank."""
        output, target = ctx.output, ctx.target
        assert target is not None
        if not target.sparse or target.rank != 2 or target.time_axis is None or target.batch_axis is None:
            raise CtcError(
                "the loss 'ctc' needs a sparse target [batch, time], but %r is %s.%s"
                % (ctx.target_name, target, sparse_hint(ctx))
            )
        if output.sparse or output.feature_axis is None or output.batch_axis is None or output.rank != 3:
            raise CtcError("the loss 'ctc' needs an output [batch, time, classes], but it is %s." % output)
        if output.time_axis is None or output.time_axis == output.feature_axis:
            raise CtcError("the loss 'ctc' needs a time axis in the output, but it is %s." % output)
        if output.dim is not None and target.dim is not None and output.dim != target.dim + 1:
            raise CtcError(
                "the %s has %d outputs but the target %r has %d labels; with 'ctc' it must have one more, for the "
                "blank: %d. Omit n_out, and it follows from the target."
                % (ctx.node.layer.class_name, output.dim, ctx.target_name, target.dim, target.dim + 1)
            )
        if self.use_viterbi and self.ctc_opts:
            raise CtcError("the loss 'ctc' with use_viterbi takes no ctc_opts. Remove one of them.")
        blank = self._opts.blank_index
        if output.dim is not None and not -output.dim <= blank < output.dim:
            raise CtcError("ctc_opts: blank_index %d: there are only %d classes." % (blank, output.dim))

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the sequences."""
        return tf.reduce_sum(self._values(ctx))

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the sequences."""
        return tf.reduce_sum(self._errors(ctx))

    def unreduced_template(self, output: Data, float_dtype: str) -> Data:
        """Return the template [batch]."""
        assert output.batch_axis is not None
        return Data((output.dims[output.batch_axis],), float_dtype)

    def unreduced(self, ctx: LossContext, *, error: bool = False) -> Any:
        """Return the value of each sequence, [batch]."""
        return self._errors(ctx) if error else self._values(ctx)

    @property
    def blank(self) -> int:
        """Return the index of the blank."""
        return self._opts.blank_index

    @property
    def _opts(self) -> CtcOptions:
        return CtcOptions(**(self.ctc_opts or {}))

    def _values(self, ctx: LossContext) -> Any:
        seqs = self._sequences(ctx)
        label_loop = self._opts.ctc_merge_repeated and self._opts.label_loop
        labels, label_lens = self._targets(seqs)
        deps = []
        if not (self._opts.ignore_longer_outputs_than_inputs or self.use_native or self.use_viterbi):
            needed = needed_frames(labels, label_lens, label_loop=label_loop)
            deps = ctx.require(
                needed <= seqs.lens,
                "ctc: the target needs more frames than the output has (one per label, and a blank between equal "
                "labels). Filter out such sequences, reduce the downsampling, or set 'loss_opts': {'ctc_opts': "
                "{'ignore_longer_outputs_than_inputs': True}} to train without them.",
                frames=seqs.lens,
                needed=needed,
                labels=label_lens,
            )
        with tf.control_dependencies(deps):
            lens = tf.identity(seqs.lens)
        losses = ctc(
            seqs.logits,
            lens,
            labels,
            label_lens,
            blank=self._blank(seqs),
            max_approx=self.use_viterbi or self._opts.max_approx,
            normalized=not self._opts.logits_normalize,
            label_loop=label_loop,
            keep_gradient_without_alignment=self.use_native and ctx.behavior_version < 30,
        )
        if not self._opts.logits_normalize and self._opts.grad_wrt_softmax_in:
            losses += softmax_gradient(seqs.logits, lens, tf.fill(tf.shape(lens), True))
        return losses

    def _blank(self, seqs: _Sequences) -> int:
        return int(self._opts.blank_index % seqs.logits.shape[-1])

    def _errors(self, ctx: LossContext) -> Any:
        seqs = self._sequences(ctx)
        classes, blank = seqs.logits.shape[-1], self._blank(seqs)
        labels, label_lens = self._targets(seqs)
        logits = seqs.logits
        if blank != classes - 1:
            logits, labels = blank_last(logits, blank, classes), labels_without_blank(labels, blank)
        if ctx.train or self.beam_width == 1:
            decoded = greedy_decode(logits, seqs.lens)
        else:
            decoded = beam_decode(logits, seqs.lens, self.beam_width)
        return sparse_edit_distance(decoded, sparse_sequences(labels, label_lens))

    def _targets(self, seqs: _Sequences) -> tuple[Any, Any]:
        """Return labels and their lengths, changed by the options."""
        labels, lens = seqs.labels, seqs.label_lens
        if self.target_collapse_repeated or self._opts.preprocess_collapse_repeated:
            labels, lens = tf.nn.collapse_repeated(labels, lens)
            lens = tf.cast(lens, tf.int32)
        if self.auto_clip_target_len:
            lens = tf.minimum(lens, tf.maximum(seqs.lens - 1, 0))
        return labels, lens

    def _sequences(self, ctx: LossContext) -> _Sequences:
        if "sequences" not in ctx.cache:
            output, target = ctx.output, ctx.target
            x = ctx.pre_activation("softmax", "log_softmax")
            if x is None or not self._opts.logits_normalize:
                x = ctx.output_value if self.output_in_log_space else safe_log(ctx.output_value)
            labels = transpose(ctx.target_value, [target.batch_axis, target.time_axis])  # type: ignore[list-item]
            ctx.cache["sequences"] = _Sequences(
                transpose(x, [output.time_axis, output.batch_axis, output.feature_axis]),  # type: ignore[list-item]
                ctx.lens(output),
                labels,
                ctx.lens(target),
            )
        sequences: _Sequences = ctx.cache["sequences"]
        return sequences
