"""The scores of all continuations of the hypotheses of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.aux_values import PRE_ACTIVATION
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.node import Node
from returnn_tf.ops.activations import clipped_log
from returnn_tf.ops.sequence.beam import ended_scores
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Candidates:
    """The possible next labels for each hypothesis; with several sources all combinations of their labels.

    :param scores: [batch, beam, candidates]
    :param kept: for each source [batch, beam, kept]: the labels kept of it; None with a single source, where the
        candidates are its labels
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


def candidates(
    log_probs: Sequence[Any], sizes: Optional[Sequence[int]], ended: Any, ended_labels: Optional[Sequence[Any]]
) -> Candidates:
    """Return the candidates of a step.

    :param log_probs: of each source [batch, beam, labels]
    :param sizes: with several sources: the number of labels to keep of each
    :param ended: bool [batch, beam]
    :param ended_labels: of each source [batch, beam]: the label that continues an ended hypothesis; default 0
    """
    labels = ended_labels or [None] * len(log_probs)
    scores = [ended_scores(x, ended, label) for x, label in zip(log_probs, labels)]
    if len(scores) == 1:
        return Candidates(scores[0])
    assert sizes is not None
    total, kept = tf.zeros(tf.concat([tf.shape(ended), [1]], axis=0), scores[0].dtype), []
    for values, size in zip(scores, sizes):
        best, index = tf.math.top_k(values, k=min(size, values.shape[2]))
        kept.append(index)
        combined = total[:, :, :, None] + best[:, :, None, :]
        total = tf.reshape(combined, [tf.shape(best)[0], tf.shape(best)[1], -1])
    return Candidates(total, kept)


def log_probs_of(ctx: EmitContext, source: Node, input_type: str) -> Any:
    """Return the log probabilities [batch * beam, labels]; for a softmax layer from the values before the softmax."""
    x = ctx.value(source)
    if input_type == "log_prob":
        return x
    if input_type == "logits":
        return tf.nn.log_softmax(x)
    before = ctx.aux(source, PRE_ACTIVATION)
    if before is not None and before.activation == "softmax":
        return tf.nn.log_softmax(before.values)
    return clipped_log(x)
