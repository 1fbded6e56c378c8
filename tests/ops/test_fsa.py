"""Alignments by acceptors: against all paths one by one, and against the topologies that are written as such."""

import itertools

import numpy as np
import pytest

from returnn_tf.ops.sequence.fast_bw import ctc_topology, label_topology, soft_alignment
from returnn_tf.ops.sequence.fsa import (
    Acceptors,
    acceptors_by_function,
    best_path_of_acceptors,
    soft_alignment_of_acceptors,
)
from returnn_tf.util.lazy_tf import tf

CLASSES, BLANK = 4, 3
LENS, LABELS, LABEL_LENS = [5, 3, 4, 2], [[0, 1, 1], [2, 0, 0], [1, 2, 0], [1, 1, 0]], [3, 1, 2, 2]


def hmm(labels):
    """Return an automaton of each label for one or more frames: the state is the number of labels that began."""
    edges = []
    for i, label in enumerate(labels):
        edges += [(i, i + 1, label), (i + 1, i + 1, label)]
    return edges


def ctc(labels):
    """States: begin, then blank or label of the chain, then one for the end, reached by copies of the last edges."""
    chain = [BLANK]
    for label in labels:
        chain += [label, BLANK]
    n = len(chain)
    steps = [(0, 1), (0, 2)] + [(i, j) for i in range(1, n + 1) for j in (i, i + 1) if j <= n]
    steps += [(i, i + 2) for i in range(1, n - 1) if chain[i + 1] not in (BLANK, chain[i - 1])]
    edges = [(i, j, chain[j - 1]) for i, j in steps if j <= n]
    return edges + [(i, n + 1, label) for i, j, label in edges if j in (n - 1, n) and j > 0]


def weighted(labels):
    return [(i, j, label, 0.3 * i + 0.1 * j) for i, j, label in hmm(labels)]


def scores(seed=1):
    x = np.random.default_rng(seed).normal(size=(5, 4, CLASSES)).astype("float32")
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def by_acceptors(function, align=soft_alignment_of_acceptors):
    @tf.function
    def run():
        acceptors = acceptors_by_function(function, tf.constant(LABELS), tf.constant(LABEL_LENS), CLASSES, "here")
        return align(tf.constant(scores()), tf.constant(LENS), acceptors)

    return [x.numpy() for x in run()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "function,topology",
    [
        (hmm, lambda: label_topology(tf.constant(LABELS), tf.constant(LABEL_LENS))),
        (ctc, lambda: ctc_topology(tf.constant(LABELS), tf.constant(LABEL_LENS), BLANK)),
    ],
)
def test_as_the_topology(function, topology):
    posteriors, total = by_acceptors(function)
    expected, expected_total = soft_alignment(tf.constant(scores()), tf.constant(LENS), topology())
    np.testing.assert_allclose(total, expected_total, rtol=1e-5)
    np.testing.assert_allclose(posteriors, expected, rtol=1e-4, atol=1e-6)


def all_paths(function, b):
    """Yield the probability and the classes of each path of a sequence."""
    edges = function(LABELS[b][: LABEL_LENS[b]])
    for path in itertools.product(edges, repeat=LENS[b]):
        ways = [0] + [e[1] for e in path]
        if all(e[0] == ways[t] for t, e in enumerate(path)) and ways[-1] == max(e[1] for e in edges):
            yield np.exp(sum(scores()[t, b, e[2]] - e[3] for t, e in enumerate(path))), [e[2] for e in path]


def test_best_against_all_paths():
    path, total = by_acceptors(weighted, best_path_of_acceptors)
    for b, length in enumerate(LENS):
        p, classes = max(all_paths(weighted, b))
        np.testing.assert_allclose(total[b], np.log(p), rtol=1e-5)
        assert path[:length, b].tolist() == classes and not path[length:, b].any()


def test_best_without_a_path():
    path, total = by_acceptors(lambda labels: [(0, 1, 0), (2, 3, 1)], best_path_of_acceptors)
    assert not path.any() and (total == -np.inf).all()


def test_first_of_equal_ways():
    """The later edges are as good, but have another class."""
    edges = [[[0, 0, 2], [0, 0, 1], [0, 1, 1], [0, 1, 0], [-1, -1, -1]]]
    path, total = best_path_of_acceptors(
        tf.zeros([3, 1, 3]), tf.constant([3]), Acceptors(tf.constant(edges), tf.zeros([1, 5]), tf.constant([2]))
    )
    assert path.numpy()[:, 0].tolist() == [2, 2, 1] and float(total[0]) == 0


def test_against_all_paths():
    posteriors, total = by_acceptors(weighted)
    for b, length in enumerate(LENS):
        sums = np.zeros([length, CLASSES])
        for p, classes in all_paths(weighted, b):
            sums[range(length), classes] += p
        np.testing.assert_allclose(total[b], np.log(sums[0].sum()), rtol=1e-5)
        np.testing.assert_allclose(posteriors[:length, b], sums / sums[0].sum(), rtol=1e-4, atol=1e-6)
        assert not posteriors[length:, b].any()


def test_no_path():
    """Nothing but zeros, and -inf: the second state cannot be left, and the third not be reached in time."""
    posteriors, total = by_acceptors(lambda labels: [(0, 1, 0), (2, 3, 1)])
    assert not posteriors.any() and (total == -np.inf).all()


@pytest.mark.parametrize("edge", [(0, 1, CLASSES), (-1, 0, 0), (0, 1, -1)])
def test_wrong_edges(edge):
    with pytest.raises(tf.errors.OpError, match="here, sequence 0 of the batch: the automaton has the edge"):
        by_acceptors(lambda labels: [edge])


def test_scores_that_are_no_numbers_show_in_the_sum() -> None:
    edges = tf.constant([[[0, 0, 0], [0, 1, 1], [1, 1, 0]]] * 2)
    scores = np.zeros([3, 2, 2], "float32")
    scores[:, 0] = float("nan")
    _, total = soft_alignment_of_acceptors(
        scores, tf.constant([3, 3]), Acceptors(edges, tf.zeros([2, 3]), tf.constant([2, 2]))
    )
    assert np.isnan(total[0]) and np.isfinite(total[1])
    path, total = best_path_of_acceptors(
        scores, tf.constant([3, 3]), Acceptors(edges, tf.zeros([2, 3]), tf.constant([2, 2]))
    )
    assert np.isnan(total[0]) and float(total[1]) == 0 and not path.numpy()[:, 0].any()
