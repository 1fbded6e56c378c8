"""Rows of the Levenshtein table, one per label of a hypothesis."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.util.lazy_tf import tf


def first_row(batch: Any, size: Any) -> Any:
    """Return the distances of the empty sequence to all prefixes: int32 [batch, size + 1]."""
    return tf.tile(tf.range(size + 1)[None], [batch, 1])


def next_row(row: Any, label: Any, reference: Any, blank: Optional[int] = None) -> Any:
    """Compute the row after one more label: ``new[j] = min(row[j] + 1, row[j-1] + (label != ref[j-1]), new[j-1] + 1)``.

    :param row: int32 [batch, size + 1]
    :param label: int [batch]
    :param reference: int [batch, size]
    :param blank: the label after which the row stays the same
    :return: int32 [batch, size + 1]
    """
    differs = tf.cast(tf.not_equal(tf.cast(label, reference.dtype)[:, None], reference), tf.int32)
    best = tf.concat([row[:, :1] + 1, tf.minimum(row[:, 1:] + 1, row[:, :-1] + differs)], axis=1)
    # new[j] = min over k <= j of best[k] + j - k: all insertions at once.
    place = tf.range(tf.shape(row)[1])
    away = place[:, None] - place[None]
    cost = best[:, None] + tf.where(away >= 0, away, tf.int32.max // 2)[None]
    new = tf.reduce_min(cost, axis=2)
    return new if blank is None else tf.where(tf.equal(label, blank)[:, None], row, new)


def completions(row: Any, reference: Any, lens: Any, labels: int, blank: Optional[int] = None) -> Any:
    """Return, for each next label, the minimum distance to the reference that remains possible.

    :param row: int32 [batch, size + 1]
    :param reference: int [batch, size]
    :param lens: int32 [batch], of the reference
    :param labels: number of labels
    :param blank: the label after which the row stays the same
    :return: int32 [batch, labels]
    """
    far = tf.int32.max // 2
    batch, size = tf.shape(reference)[0], tf.shape(reference)[1]
    best = tf.reduce_min(tf.where(tf.sequence_mask(lens + 1, size + 1), row, far), axis=1)
    # The next label of the reference costs nothing. Labels out of range are ignored.
    label = tf.cast(reference, tf.int32)
    valid = tf.logical_and(tf.sequence_mask(lens, size), tf.logical_and(label >= 0, label < labels))
    place = tf.stack([tf.broadcast_to(tf.range(batch)[:, None], [batch, size]), tf.where(valid, label, 0)], axis=2)
    by_label = tf.tile(best[:, None] + 1, [1, labels])
    if labels:
        by_label = tf.tensor_scatter_nd_min(by_label, place, tf.where(valid, row[:, :-1], far))
    return by_label if blank is None else tf.where(tf.range(labels) == blank, best[:, None], by_label)
