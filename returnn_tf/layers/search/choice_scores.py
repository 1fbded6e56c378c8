"""The scores of all continuations of the hypotheses of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.aux_values import PRE_ACTIVATION
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.ops.activations import clipped_log
from returnn_tf.ops.frames.shape import size_of
from returnn_tf.ops.sequence.beam import ended_best, ended_scores
from returnn_tf.ops.sequence.best_labels import best_of_log_softmax
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Candidates:
    """The possible next labels for each hypothesis; with several sources all combinations of their labels.

    :param scores: [batch, beam, candidates]
    :param kept: for each source [batch, beam, kept]: the labels kept of it; None: the candidates are the labels of a
        single source
    """

    scores: Any
    kept: Optional[list[Any]] = None

    def labels(self, source: Any, candidate: Any) -> list[Any]:
        """Return the label of each source, [batch, entries].

        :param source: [batch, entries]: the hypothesis to continue
        :param candidate: [batch, entries]: the candidate to continue it by
        """
        if self.kept is None:
            return [candidate]
        result: list[Any] = []
        for labels in reversed(self.kept):
            count = tf.shape(labels)[2]
            of_source = tf.gather(labels, source, batch_dims=1)
            result.insert(0, tf.gather(of_source, candidate % count, batch_dims=2))
            candidate = candidate // count
        return result


def all_candidates(log_probs: Any, ended: Any, ended_label: Optional[Any]) -> Candidates:
    """Return all labels of a single source as candidates.

    :param log_probs: [batch * beam, labels]
    :param ended: bool [batch, beam]
    :param ended_label: [batch, beam]: the label that continues an ended hypothesis; default 0
    """
    x = tf.reshape(log_probs, [-1, ended.shape[1], size_of(log_probs, -1)])
    return Candidates(ended_scores(x, ended, ended_label))


def best_candidates(found: Sequence[tuple[Any, Any]], ended: Any, ended_labels: Optional[Sequence[Any]]) -> Candidates:
    """Return the combinations of the best labels of each source as candidates.

    :param found: of each source, see `best_log_probs`
    :param ended: bool [batch, beam]
    :param ended_labels: of each source [batch, beam]: the label that continues an ended hypothesis; default 0
    """
    total, kept = None, []
    for (values, labels), label in zip(found, ended_labels or [None] * len(found)):
        shape = [-1, ended.shape[1], values.shape[1]]
        best, labels = ended_best(tf.reshape(values, shape), tf.reshape(labels, shape), ended, label)
        kept.append(labels)
        if total is None:
            total = best
        else:
            combined = total[:, :, :, None] + best[:, :, None, :]
            total = tf.reshape(combined, [tf.shape(best)[0], ended.shape[1], -1])
    return Candidates(total, kept)


def best_log_probs(ctx: EmitContext, source: Node, input_type: str, count: int) -> tuple[Any, Any]:
    """Return the highest of `log_probs_of` and their labels, each [batch * beam, count].

    The others are not normalised. Equal ones are in the order of the labels. With fewer labels there are fewer.
    """
    x, before = ctx.value(source), ctx.aux(source, PRE_ACTIVATION)
    count = min(count, x.shape[-1])
    if input_type == "prob" and before is not None and before.activation == "softmax":
        x, input_type = before.values, "logits"
    if input_type == "logits":
        return best_of_log_softmax(x, count, with_gradient=ctx.train)
    if input_type == "prob":
        x = clipped_log(x)
    found: tuple[Any, Any] = tf.math.top_k(x, k=count)
    return found


def chooses_positions(source: Node) -> bool:
    """Return whether the labels that a source scores are positions, whose number is dynamic."""
    dim = source.output.feature_dim
    return dim is not None and dim.size is None


def in_label_order(ctx: EmitContext, source: Node) -> Any:
    """Return the scores [batch * beam, labels]; those of positions may be in another order of axes."""
    data, x = source.output, ctx.value(source)
    return tf.transpose(x) if data.rank == 2 and data.feature_axis == 0 else x


def valid_labels(ctx: EmitContext, source: Node) -> Optional[Any]:
    """Return which labels are no padding, bool [batch * beam, labels]; None: all, as their number is static."""
    dim = source.output.feature_dim
    if dim is None or not chooses_positions(source):
        return None
    return tf.sequence_mask(tf.broadcast_to(ctx.lens(dim), [tf.shape(in_label_order(ctx, source))[0]]), ctx.size(dim))


def log_probs_of(ctx: EmitContext, source: Node, input_type: str) -> Any:
    """Return the log probabilities [batch * beam, labels]; for a softmax layer from the values before the softmax."""
    x = in_label_order(ctx, source)
    if input_type == "log_prob":
        return x
    if input_type == "logits":
        valid = valid_labels(ctx, source)
        return tf.nn.log_softmax(x if valid is None else tf.where(valid, x, x.dtype.min))
    before = ctx.aux(source, PRE_ACTIVATION)
    if before is not None and before.activation == "softmax" and not chooses_positions(source):
        return tf.nn.log_softmax(before.values)
    return clipped_log(x)
