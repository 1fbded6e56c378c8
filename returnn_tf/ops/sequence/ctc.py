"""Connectionist temporal classification (Graves et al. 2006): the loss by TensorFlow's op, and decoding.

The blank is the last class everywhere here; see `blank_last`.
"""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.ops.sequence.edit_distance import sparse_sequences
from returnn_tf.util.lazy_tf import tf


def needed_frames(labels: Any, label_lens: Any, *, label_loop: bool = True) -> Any:
    """Return the minimum number of frames for the labels: one each, and a blank between equal neighbours.

    :param labels: int [batch, labels]
    :param label_loop: False: a label lasts one frame, and then no blank is needed between equal ones
    :return: int32 [batch]
    """
    if not label_loop:
        return label_lens
    equal = tf.equal(labels[:, 1:], labels[:, :-1])
    twice = tf.logical_and(equal, tf.sequence_mask(label_lens - 1, tf.shape(equal)[1]))
    return label_lens + tf.reduce_sum(tf.cast(twice, tf.int32), axis=1)


def ctc_loss(logits: Any, lens: Any, labels: Any, label_lens: Any, *, label_loop: bool = True) -> Any:
    """Compute ``-log p(labels | logits)``, summed over all alignments.

    :param logits: [time, batch, classes], not normalised
    :param lens: int32 [batch]
    :param labels: int [batch, labels]
    :param label_loop: False: a label lasts one frame
    :return: [batch]; 0 with a gradient of 0 where there are fewer frames than `needed_frames`
    """
    empty = tf.equal(label_lens, 0)
    usual = tf.logical_and(tf.logical_not(empty), needed_frames(labels, label_lens, label_loop=label_loop) <= lens)
    # TensorFlow's op rejects sequences without labels, and returns infinity for some that are too short. All but the
    # usual ones get one label here, and their values are replaced.
    labels = tf.pad(labels, [[0, 0], [0, 1]])
    sparse = sparse_sequences(labels, tf.where(usual, label_lens, tf.ones_like(label_lens)))

    def with_frames() -> Any:
        return tf.raw_ops.CTCLoss(
            inputs=logits,
            labels_indices=sparse.indices,
            labels_values=sparse.values,
            sequence_length=lens,
            ctc_merge_repeated=label_loop,
            ignore_longer_outputs_than_inputs=True,
        ).loss

    # the op also rejects a batch without sequences or frames
    loss = tf.cond(tf.size(logits) > 0, with_frames, lambda: tf.reduce_sum(logits, axis=[0, 2]))
    loss = tf.where(usual, loss, tf.zeros_like(loss))
    only_blank = tf.cond(
        tf.reduce_any(empty),
        lambda: tf.where(empty, _all_blank(logits, lens), tf.zeros_like(loss)),
        lambda: tf.zeros_like(loss),
    )
    return loss + only_blank


def _all_blank(logits: Any, lens: Any) -> Any:
    """Compute the loss of the empty sequence, [batch]."""
    scores = tf.nn.log_softmax(logits)[:, :, -1]
    mask = tf.range(tf.shape(logits)[0])[:, None] < lens
    return -tf.reduce_sum(tf.where(mask, scores, tf.zeros_like(scores)), axis=0)


def blank_last(scores: Any, blank: int, classes: int) -> Any:
    """Move the blank to the end of the class axis (the last one).

    :param blank: index of the blank
    :param classes: number of classes with blank
    """
    if blank == classes - 1:
        return scores
    return tf.concat([scores[..., :blank], scores[..., blank + 1 :], scores[..., blank : blank + 1]], axis=-1)


def labels_without_blank(labels: Any, blank: int) -> Any:
    """Convert labels to indices into `blank_last`."""
    return tf.where(labels > blank, labels - 1, labels)


def greedy_decode(logits: Any, lens: Any) -> Any:
    """Return the best class per frame, repetitions merged and blanks removed.

    :param logits: [time, batch, classes]
    :return: `tf.SparseTensor` [batch, labels]
    """
    return _decoded(logits, lambda: tf.nn.ctc_greedy_decoder(logits, lens, merge_repeated=True))


def beam_decode(logits: Any, lens: Any, beam_width: int) -> Any:
    """Return the best labelling by prefix beam search.

    :param logits: [time, batch, classes]
    :return: `tf.SparseTensor` [batch, labels]
    """
    return _decoded(logits, lambda: tf.nn.ctc_beam_search_decoder(logits, lens, beam_width=beam_width, top_paths=1))


def _decoded(logits: Any, decode: Callable[[], Any]) -> Any:
    """Return the best labels of a decoder; empty without sequences or frames, which TensorFlow's decoders refuse."""

    def nothing() -> Any:
        shape = tf.stack([tf.shape(logits, out_type=tf.int64)[1], 0])
        return tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), shape)

    return tf.cond(tf.size(logits) > 0, lambda: decode()[0][0], nothing)
