"""BLEU of label sequences (Papineni et al. 2002), for whole batches."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf


def bleu_scores(hyps: Any, hyp_lens: Any, refs: Any, ref_lens: Any, max_order: int = 4) -> Any:
    """Compute BLEU of each sequence: geometric mean of the n-gram precisions times the brevity penalty.

    An order without any match counts as ``1 / (2^k * n-grams)``, where k is the number of orders without any match so
    far; an order with no n-grams at all (short sequences) has factor 1.

    :param hyps: int [batch, time]
    :param refs: int [batch, ref time]
    :return: float32 [batch]; 0 for an empty hypothesis
    """
    same = tf.equal(hyps[:, :, None], hyps[:, None, :])
    same_ref = tf.equal(hyps[:, :, None], refs[:, None, :])
    log_sum = tf.zeros(tf.shape(hyp_lens), tf.float32)
    smooth = tf.ones(tf.shape(hyp_lens), tf.float32)
    grams, grams_ref = same, same_ref
    for order in range(1, max_order + 1):
        if order > 1:
            grams = tf.logical_and(grams, _ahead(same, order - 1))
            grams_ref = tf.logical_and(grams_ref, _ahead(same_ref, order - 1))
        valid = tf.sequence_mask(hyp_lens - order + 1, tf.shape(hyps)[1])
        valid_ref = tf.sequence_mask(ref_lens - order + 1, tf.shape(refs)[1])
        count = tf.reduce_sum(tf.cast(tf.logical_and(grams, valid[:, None]), tf.float32), axis=2)
        count_ref = tf.reduce_sum(tf.cast(tf.logical_and(grams_ref, valid_ref[:, None]), tf.float32), axis=2)
        # Each of the `count` occurrences of an n-gram brings its share of the clipped matches.
        shares = tf.math.divide_no_nan(tf.minimum(count, count_ref), count) * tf.cast(valid, tf.float32)
        matches = tf.round(tf.reduce_sum(shares, axis=1))
        possible = tf.cast(tf.maximum(hyp_lens - order + 1, 0), tf.float32)
        smooth = tf.where(tf.logical_and(possible > 0, matches < 0.5), smooth * 2.0, smooth)
        numerator = tf.where(matches < 0.5, 1.0 / smooth, matches)
        log_sum += tf.where(possible > 0, tf.math.log(numerator / tf.maximum(possible, 1.0)), 0.0)
    ratio = tf.cast(hyp_lens, tf.float32) / tf.cast(tf.maximum(ref_lens, 1), tf.float32)
    penalty = tf.exp(tf.minimum(1.0 - 1.0 / tf.maximum(ratio, 1e-6), 0.0))
    return tf.where(hyp_lens > 0, tf.exp(log_sum / max_order) * penalty, 0.0)


def _ahead(same: Any, steps: int) -> Any:
    """Return ``same[:, i + steps, j + steps]``, False beyond the end."""
    return tf.pad(
        same[:, steps:, steps:],
        [[0, 0], [0, tf.minimum(steps, tf.shape(same)[1])], [0, tf.minimum(steps, tf.shape(same)[2])]],
    )
