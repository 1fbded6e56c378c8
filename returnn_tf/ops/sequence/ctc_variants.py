"""CTC with any blank index, with the best-path loss, or on normalised scores."""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.ops.cross_entropy import with_gradient
from returnn_tf.ops.sequence.ctc import blank_last, ctc_loss, labels_without_blank, needed_frames
from returnn_tf.ops.sequence.fast_bw import Topology, best_alignment, ctc_topology, soft_alignment
from returnn_tf.util.lazy_tf import tf

BestAlignment = Callable[[Any, Any, Topology], tuple[Any, Any]]
"""As `best_alignment`."""


def ctc_variant(
    logits: Any,
    lens: Any,
    labels: Any,
    label_lens: Any,
    *,
    blank: int,
    max_approx: bool = False,
    normalized: bool = False,
    label_loop: bool = True,
    keep_gradient_without_alignment: bool = False,
    best: BestAlignment = best_alignment,
) -> Any:
    """Compute ``-log p(labels | logits)``, over all alignments or for the best one.

    :param logits: [time, batch, classes]
    :param lens: int32 [batch]
    :param labels: int [batch, labels]
    :param label_lens: int32 [batch]
    :param max_approx: the best alignment
    :param normalized: logits are log probabilities, they are not normalised again
    :param label_loop: False: a label lasts one frame
    :param keep_gradient_without_alignment: sequences with too few frames have the gradient softmax(logits), not 0
    :param best: finds the best alignment
    :return: [batch]; 0 where there are too few frames
    """
    classes = logits.shape[-1]
    if max_approx or normalized:
        scores = logits if normalized else tf.nn.log_softmax(logits)
        if max_approx:
            loss = best_path_loss(scores, lens, labels, label_lens, blank, label_loop, best)
        else:
            loss = full_sum_loss(scores, lens, labels, label_lens, blank, label_loop)
    else:
        moved = labels if blank == classes - 1 else labels_without_blank(labels, blank)
        loss = ctc_loss(blank_last(logits, blank, classes), lens, moved, label_lens, label_loop=label_loop)
    if keep_gradient_without_alignment and not normalized:
        impossible = needed_frames(labels, label_lens, label_loop=label_loop) > lens
        loss += softmax_gradient(logits, lens, impossible)
    return loss


def full_sum_loss(scores: Any, lens: Any, labels: Any, label_lens: Any, blank: int, label_loop: bool = True) -> Any:
    """Compute minus the log of the sum over all alignments of log scores [time, batch, classes]; [batch]."""
    posteriors, total = soft_alignment(scores, lens, ctc_topology(labels, label_lens, blank, label_loop=label_loop))
    return _loss(scores, posteriors, total)


def best_path_loss(
    scores: Any,
    lens: Any,
    labels: Any,
    label_lens: Any,
    blank: int,
    label_loop: bool = True,
    best: BestAlignment = best_alignment,
) -> Any:
    """Compute minus the score of the best alignment on log scores [time, batch, classes]; [batch]."""
    path, total = best(scores, lens, ctc_topology(labels, label_lens, blank, label_loop=label_loop))
    inside = tf.logical_and(tf.range(tf.shape(scores)[0])[:, None] < lens, tf.math.is_finite(total))
    chosen = tf.one_hot(tf.where(inside, path, -tf.ones_like(path)), scores.shape[-1], dtype=scores.dtype)
    return _loss(scores, chosen, total)


def _loss(scores: Any, weights: Any, total: Any) -> Any:
    """Return ``-total`` with the gradient ``-weights``; 0 without any alignment. NaN is passed on for detection."""
    value = tf.where(tf.equal(total, float("-inf")), tf.zeros_like(total), -total)
    return with_gradient(value, scores, lambda grad: -weights * grad[None, :, None])


def softmax_gradient(logits: Any, lens: Any, where: Any) -> Any:
    """Return [batch] zeros, with the gradient softmax(logits) in the valid frames of the selected sequences."""

    def gradient(grad: Any) -> Any:
        inside = tf.logical_and(tf.range(tf.shape(logits)[0])[:, None] < lens, where)[:, :, None]
        return tf.where(inside, tf.nn.softmax(logits) * grad[None, :, None], tf.zeros_like(logits))

    return with_gradient(tf.zeros(tf.shape(lens), logits.dtype), logits, gradient)
