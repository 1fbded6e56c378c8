"""Levenshtein distance between label sequences, for whole batches."""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf


def sparse_sequences(labels: Any, lens: Any) -> Any:
    """Convert a batch of sequences to the sparse tensor for TF's sequence ops.

    :param labels: int [batch, time]
    :param lens: int32 [batch]
    :return: int32 `tf.SparseTensor`
    """
    mask = tf.sequence_mask(lens, tf.shape(labels)[1])
    values = tf.cast(tf.boolean_mask(labels, mask), tf.int32)
    return tf.SparseTensor(tf.where(mask), values, tf.shape(labels, out_type=tf.int64))


def edit_distance(a: Any, a_lens: Any, b: Any, b_lens: Any) -> Any:
    """Compute the minimum number of insertions, deletions and substitutions between two sequences.

    :param a: int [batch, time_a]
    :param b: int [batch, time_b]
    :return: float32 [batch]
    """
    return sparse_edit_distance(sparse_sequences(a, a_lens), sparse_sequences(b, b_lens))


def sparse_edit_distance(a: Any, b: Any) -> Any:
    """Compute `edit_distance` of sparse tensors, such as the output of a CTC decoder."""
    # with one more sequence, as TensorFlow refuses a batch of none
    return tf.edit_distance(_one_more(tf.cast(a, tf.int32)), _one_more(b), normalize=False)[:-1]


def _one_more(x: Any) -> Any:
    """Append an empty sequence."""
    return tf.SparseTensor(x.indices, x.values, x.dense_shape + [1, 0])
