"""Recombination in beam search: identity of hypotheses, and merged scores."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf

# Multiplier of the generator of Knuth's MMIX: a polynomial hash modulo 2**64.
_FACTOR = 6364136223846793005


def extended_history(history: Any, label: Any) -> Any:
    """Return the hash of a label sequence extended by one label.

    :param history: int64, of the sequence so far; 0 for the empty one
    :param label: int32, broadcasts
    """
    return history * tf.constant(_FACTOR, tf.int64) + tf.cast(label, tf.int64) + 1


def merge_equal(scores: Any, identity: Any, kind: str) -> Any:
    """Keep only the best of all entries with the same identity; the others get -inf.

    :param scores: [batch, entries], log
    :param identity: [batch, entries]
    :param kind: "max": the best one keeps its score; "sum": it gets the log of the sum of the probabilities
    """
    same = tf.equal(identity[:, :, None], identity[:, None, :])  # [batch, entry, other]
    others = tf.where(same, scores[:, None, :], float("-inf"))
    order = tf.range(tf.shape(scores)[1])
    worse = scores[:, None, :] > scores[:, :, None]
    tie = tf.logical_and(tf.equal(scores[:, None, :], scores[:, :, None]), (order[None, :] < order[:, None])[None])
    beaten = tf.reduce_any(tf.logical_and(same, tf.logical_or(worse, tie)), axis=2)
    merged = tf.reduce_logsumexp(others, axis=2) if kind == "sum" else scores
    return tf.where(beaten, tf.constant(float("-inf"), merged.dtype), merged)
