"""Beam search on tensors: one step, reordering, and backtracking. Batch entries of a beam are neighbours."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.ops.sequence.hypothesis_scores import OTHERS, of_ended
from returnn_tf.util.lazy_tf import tf


def flat_index(beams: Any, beam_in: int) -> Any:
    """Return the flat index into [batch * beam_in] of the entries ``beams`` [batch, beam_out] of each sequence."""
    batch = tf.shape(beams)[0]
    return tf.reshape(beams + tf.expand_dims(tf.range(batch), 1) * beam_in, [-1])


def choose(scores: Any, beam: int) -> tuple[Any, Any, Any]:
    """Select the best candidates of each sequence, best first; ties go to the lower index.

    :param scores: [batch, beam_in, labels]
    :return: scores, source beam and label, each [batch, beam]; with fewer candidates than ``beam`` the rest has score
        -inf, source beam 0 and label 0
    """
    size = tf.shape(scores)
    labels = scores.shape[2] if scores.shape[2] is not None else size[2]
    flat = tf.reshape(scores, [size[0], size[1] * labels])
    missing = tf.maximum(beam - size[1] * labels, 0)
    best, index = tf.math.top_k(flat, k=tf.minimum(beam, size[1] * labels))
    best = tf.pad(best, [[0, 0], [0, missing]], constant_values=float("-inf"))
    index = tf.pad(index, [[0, 0], [0, missing]])
    best.set_shape([None, beam])
    index.set_shape([None, beam])
    return best, index // labels, index % labels


def best_of_each(scores: Any, beam: int) -> tuple[Any, Any, Any]:
    """Select like `choose`, but continue each hypothesis by ``beam / (number of hypotheses)`` candidates.

    :param scores: [batch, beam_in, labels]
    :param beam: a multiple of ``beam_in``
    """
    before = scores.shape[1]
    each = beam // before
    if scores.shape[2] is None:
        missing = tf.maximum(each - tf.shape(scores)[2], 0)
        scores = tf.pad(scores, [[0, 0], [0, 0], [0, missing]], constant_values=float("-inf"))
    best, labels = tf.math.top_k(scores, k=each)
    source = tf.broadcast_to(tf.range(before)[None, :, None], tf.shape(labels))
    flat = [tf.reshape(x, [-1, before * each]) for x in (best, source, labels)]
    order = tf.argsort(flat[0], direction="DESCENDING", stable=True)
    first, second, third = (tf.gather(x, order, batch_dims=1) for x in flat)
    return first, second, third


def ended_scores(scores: Any, ended: Any, label: Optional[Any] = None) -> Any:
    """Return scores for hypotheses that have ended: 0 for one label, -1e30 for all others.

    :param scores: [batch, beam, labels]
    :param ended: bool [batch, beam]
    :param label: int32 [batch, beam]: the one; default 0
    """
    labels, others = tf.range(tf.shape(scores)[2]), tf.constant(OTHERS, scores.dtype)
    return of_ended(tf, scores, ended, labels, 0 if label is None else label[:, :, None], others)


def ended_best(scores: Any, labels: Any, ended: Any, label: Optional[Any] = None) -> tuple[Any, Any]:
    """Return the highest of `ended_scores`, and their labels, given the highest scores.

    :param scores: [batch, beam, best]
    :param labels: int32 [batch, beam, best]
    :param ended: bool [batch, beam]
    :param label: int32 [batch, beam]: the one with score 0; default 0
    """
    count = scores.shape[2]
    zero = tf.zeros([], scores.dtype)
    fixed = tf.where(tf.range(count) == 0, zero, zero + OTHERS)
    first = tf.zeros([1, 1, 1], tf.int32) if label is None else label[:, :, None]
    others = tf.range(count - 1) + tf.cast(tf.range(count - 1) >= first, tf.int32)
    order = tf.concat([first, others], axis=2)
    ended = tf.expand_dims(ended, 2)
    return tf.where(ended, fixed, scores), tf.where(ended, order, labels)


def read_backwards(source_beams: Any, last_beam: int) -> tuple[Any, Any]:
    """Backtrack the beam entries of the final hypotheses over all steps.

    :param source_beams: [steps, batch, beam]: for the entries at the end of a step, their entry at its start
    :return: for each final hypothesis, its entry at the end of each step, [steps, batch, beam], and its entry before
        the first step, [batch, beam]
    """
    _, batch, beam = tf.unstack(tf.shape(source_beams))
    final = tf.tile(tf.expand_dims(tf.range(last_beam), 0), [batch, 1])

    def back(entry: Any, source: Any) -> Any:
        return tf.gather(source, entry, batch_dims=1)

    # The entry at the end of step t is the one at the start of step t + 1. After the last step nothing is reordered:
    # that row comes first, so that there is one where no step was taken.
    same = tf.tile(tf.range(beam)[None, None], [1, batch, 1])
    sources = tf.concat([same, tf.reverse(source_beams, [0])], axis=0)  # reverse=True can't be converted
    entries = tf.scan(back, sources, initializer=final)
    return tf.reverse(entries[:-1], [0]), entries[-1]


def along_hypotheses(values: Any, entries: Any, batch_axis: int) -> Any:
    """Reorder the values of all steps along the final hypotheses.

    :param values: [steps, ..., batch * beam, ...]
    :param entries: [steps, batch, beam], see `read_backwards`
    :param batch_axis: index of the batch axis in ``values``, at least 1
    """
    steps, batch, beam = tf.unstack(tf.shape(entries))
    index = entries + tf.reshape(tf.range(batch), [1, batch, 1]) * beam
    rank = values.shape.rank
    perm = [0, batch_axis] + [i for i in range(1, rank) if i != batch_axis]
    moved = tf.transpose(values, perm) if perm != list(range(rank)) else values
    moved = tf.gather(moved, tf.reshape(index, [steps, batch * beam]), batch_dims=1)
    if perm == list(range(rank)):
        return moved
    back = [perm.index(i) for i in range(rank)]
    return tf.transpose(moved, back)
