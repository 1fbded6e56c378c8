"""Batched forward-backward and Viterbi over finite-state acceptors: one per sequence, with classes on the edges.

An acceptor has the states 0, 1, ..., n - 1. State 0 is the initial one, state n - 1 the final one. Each edge consumes
one frame: it goes from a state to a state, has a class whose score applies, and a cost (negative log probability).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import numpy as np

from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.util.lazy_tf import tf

#: In place of -inf, so that differences stay numbers.
_NEG = -1e30
_MINUS_INF = float("-inf")


@dataclasses.dataclass(frozen=True)
class Acceptors:
    """The acceptors of a batch.

    :param edges: int32 [batch, edges, 3]: from, to, class; -1 where a sequence has fewer edges
    :param costs: float [batch, edges]
    :param num_states: int32 [batch]
    """

    edges: Any
    costs: Any
    num_states: Any


def acceptors_by_function(
    function: Callable[[Any], Any], labels: Any, lens: Any, classes: int, where: str
) -> Acceptors:
    """Call a Python function for the acceptor of each sequence while the graph runs.

    :param function: from labels (int array) to edges ``(from, to, class)`` or ``(from, to, class, cost)``
    :param labels: int [batch, labels]
    :param lens: int [batch]
    :param classes: number of classes
    :param where: how an error begins
    """

    def build(labels: Any, lens: Any) -> Any:
        rows = [function(labels[b, : lens[b]].copy()) for b in range(len(labels))]
        return _padded(
            [_checked(row, classes, "%s, sequence %d of the batch" % (where, b)) for b, row in enumerate(rows)]
        )

    edges, costs, num_states = tf.numpy_function(build, [labels, lens], [tf.int32, tf.float32, tf.int32])
    edges.set_shape([None, None, 3])
    costs.set_shape([None, None])
    num_states.set_shape([None])
    return Acceptors(edges, costs, num_states)


def _checked(edges: Iterable[Sequence[Any]], classes: int, where: str) -> list[tuple[int, int, int, float]]:
    rows = [(int(e[0]), int(e[1]), int(e[2]), float(e[3]) if len(e) > 3 else 0.0) for e in edges]
    for edge in rows:
        if edge[0] < 0 or edge[1] < 0 or not 0 <= edge[2] < classes:
            raise ValueError(
                "%s: the automaton has the edge (from %d, to %d, class %d), but states begin at 0 and there are %d "
                "classes." % ((where,) + edge[:3] + (classes,))
            )
    return rows


def _padded(rows: list[list[tuple[int, int, int, float]]]) -> Any:
    longest = max([len(row) for row in rows], default=0)
    edges = np.full([len(rows), longest, 3], -1, "int32")
    costs = np.zeros([len(rows), longest], "float32")
    num_states = np.ones([len(rows)], "int32")
    for b, row in enumerate(rows):
        if row:
            edges[b, : len(row)] = [edge[:3] for edge in row]
            costs[b, : len(row)] = [edge[3] for edge in row]
            num_states[b] = edges[b, : len(row), :2].max() + 1
    return edges, costs, num_states


def soft_alignment_of_acceptors(scores: Any, lens: Any, acceptors: Acceptors) -> tuple[Any, Any]:
    """Compute posteriors of all classes and the full-sum score.

    :param scores: [time, batch, classes] log scores
    :param lens: int32 [batch], frames
    :return: (probabilities [time, batch, classes], 0 in padded frames and where there is no path; log of the sum over
        all paths [batch], -inf where there is none). No gradients.
    """
    scores = tf.stop_gradient(scores)
    frames, batch, classes = tf.shape(scores)[0], tf.shape(scores)[1], tf.shape(scores)[2]
    states = tf.reduce_max(tf.concat([acceptors.num_states, [1]], axis=0))
    exists = acceptors.edges[:, :, 2] >= 0
    origin, goal, label = (tf.where(exists, acceptors.edges[:, :, i], 0) for i in range(3))
    first = tf.range(batch)[:, None]
    weights = tf.where(exists, -acceptors.costs, _NEG)

    def emission(t: Any) -> Any:  # [batch, edges]
        return tf.gather(scores[t], label, batch_dims=1) + weights

    def arrive(values: Any, ids: Any) -> Any:  # [batch, edges] -> [batch, states]
        return tf.reshape(
            _segment_logsumexp(tf.reshape(values, [-1]), tf.reshape(ids + first * states, [-1]), batch * states),
            [batch, states],
        )

    def forward(t: Any, alpha: Any, alphas: Any) -> Any:
        alphas = alphas.write(t, alpha)
        new = arrive(tf.gather(alpha, origin, batch_dims=1) + emission(t), goal)
        return t + 1, tf.where((t < lens)[:, None], new, alpha), alphas

    alphas = tf.TensorArray(scores.dtype, size=frames, element_shape=[None, None])
    start = tf.cast(tf.where(tf.range(states) > 0, _NEG, 0.0), scores.dtype) + tf.zeros([batch, 1], scores.dtype)
    _, alpha, alphas = tf.while_loop(lambda t, *_: t < frames, forward, (0, start, alphas))
    total = tf.gather(alpha, (acceptors.num_states - 1)[:, None], batch_dims=1)[:, 0]
    found = tf.logical_not(total <= _NEG / 2)  # NaN is passed on for detection
    ids = label + first * classes

    def backward(t: Any, beta: Any, posteriors: Any) -> Any:
        ahead = tf.gather(beta, goal, batch_dims=1) + emission(t)
        joint = tf.gather(alphas.read(t), origin, batch_dims=1) + ahead - total[:, None]
        inside = tf.logical_and(t < lens, found)[:, None]
        joint = tf.where(tf.logical_and(inside, exists), tf.exp(joint), 0.0)
        by_class = tf.math.unsorted_segment_sum(tf.reshape(joint, [-1]), tf.reshape(ids, [-1]), batch * classes)
        posteriors = posteriors.write(t, tf.reshape(by_class, [batch, classes]))
        return t - 1, tf.where((t < lens)[:, None], arrive(ahead, origin), beta), posteriors

    at_end = tf.equal(tf.range(states), (acceptors.num_states - 1)[:, None])
    end = tf.cast(tf.where(at_end, 0.0, _NEG), scores.dtype)
    posteriors = tf.TensorArray(scores.dtype, size=frames, element_shape=[None, scores.shape[2]])
    _, _, posteriors = tf.while_loop(lambda t, *_: t >= 0, backward, (frames - 1, end, posteriors))
    return stacked(posteriors, [batch, classes]), tf.where(found, total, float("-inf"))


def best_path_of_acceptors(scores: Any, lens: Any, acceptors: Acceptors) -> tuple[Any, Any]:
    """Return the class of every frame on the best path, and its score (Viterbi).

    Of several best paths up to a state, the one with the earlier last edge wins.

    :param scores: [time, batch, classes] log scores
    :param lens: int32 [batch], frames
    :return: (int32 [time, batch], 0 in padded frames and where there is no path; [batch], -inf there). No gradients.
    """
    scores = tf.stop_gradient(scores)
    frames, batch = tf.shape(scores)[0], tf.shape(scores)[1]
    states = tf.reduce_max(tf.concat([acceptors.num_states, [1]], axis=0))
    exists = acceptors.edges[:, :, 2] >= 0
    origin, goal, label = (tf.where(exists, acceptors.edges[:, :, i], 0) for i in range(3))
    number = tf.broadcast_to(tf.range(tf.shape(origin)[1]), tf.shape(origin))
    ids = tf.reshape(goal + tf.range(batch)[:, None] * states, [-1])

    def by_state(segment: Any, values: Any) -> Any:  # [batch, edges] -> [batch, states]
        return tf.reshape(segment(tf.reshape(values, [-1]), ids, batch * states), [batch, states])

    def forward(t: Any, alpha: Any, last_edges: Any) -> Any:
        ways = tf.gather(alpha, origin, batch_dims=1) + (tf.gather(scores[t], label, batch_dims=1) - acceptors.costs)
        ways = tf.where(exists, ways, _MINUS_INF)
        best = by_state(tf.math.unsorted_segment_max, ways)
        best = tf.where(best <= scores.dtype.min, _MINUS_INF, best)  # that is the maximum of nothing
        is_best = tf.logical_and(exists, tf.equal(ways, tf.gather(best, goal, batch_dims=1)))
        last = by_state(tf.math.unsorted_segment_min, tf.where(is_best, number, tf.int32.max))
        is_nan = by_state(tf.math.unsorted_segment_max, tf.cast(tf.math.is_nan(ways), tf.int32)) > 0
        best = tf.where(is_nan, tf.cast(float("nan"), best.dtype), best)  # passed on for detection
        return t + 1, tf.where((t < lens)[:, None], best, alpha), last_edges.write(t, last)

    last_edges = tf.TensorArray(tf.int32, size=frames, element_shape=[None, None])
    start = tf.where(tf.range(states) > 0, _MINUS_INF, 0.0) + tf.zeros([batch, 1], scores.dtype)
    _, alpha, last_edges = tf.while_loop(lambda t, *_: t < frames, forward, (0, start, last_edges))
    end = acceptors.num_states - 1
    total = tf.gather(alpha, end[:, None], batch_dims=1)[:, 0]
    found = tf.math.is_finite(total)

    def back(t: Any, state: Any, path: Any) -> Any:
        inside = tf.logical_and(t < lens, found)
        edge = tf.gather(last_edges.read(t), state[:, None], batch_dims=1)
        edge = tf.where(inside[:, None], edge, 0)
        path = path.write(t, tf.where(inside, tf.gather(label, edge, batch_dims=1)[:, 0], 0))
        return t - 1, tf.where(inside, tf.gather(origin, edge, batch_dims=1)[:, 0], state), path

    path = tf.TensorArray(tf.int32, size=frames, element_shape=[None])
    _, _, path = tf.while_loop(lambda t, *_: t >= 0, back, (frames - 1, end, path))
    return stacked(path, [batch]), total


def _segment_logsumexp(x: Any, ids: Any, count: Any) -> Any:
    """Compute the log of the sum of exp(x) over the entries with the same id; ``_NEG`` for empty segments."""
    largest = tf.maximum(tf.math.unsorted_segment_max(x, ids, count), _NEG)
    sums = tf.math.unsorted_segment_sum(tf.exp(x - tf.gather(largest, ids)), ids, count)
    return tf.maximum(largest + tf.math.log(tf.maximum(sums, 1e-30)), _NEG)
