"""Automata as lists of edges: they give what the topologies give that are written as such, whatever their order."""

import numpy as np
import pytest

from returnn_tf.ops.sequence.edge_lists import acceptors_of_edge_list, ctc_edge_list
from returnn_tf.ops.sequence.fast_bw import best_alignment, ctc_topology, soft_alignment
from returnn_tf.ops.sequence.fsa import best_path_of_acceptors, soft_alignment_of_acceptors
from returnn_tf.util.lazy_tf import tf

BLANK = 3
LENS, LABELS, LABEL_LENS = [6, 3, 4, 2, 5], [[0, 1, 1], [2, 0, 0], [1, 2, 0], [1, 1, 0], [0, 0, 0]], [3, 1, 2, 2, 0]


def scores():
    x = np.random.default_rng(1).normal(size=(6, 5, 4)).astype("float32")
    return tf.constant(x - np.log(np.exp(x).sum(-1, keepdims=True)))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("label_loop", [False, True])
def test_ctc(label_loop, shuffled):
    def run(order):
        edges, costs, ends = ctc_edge_list(tf.constant(LABELS), tf.constant(LABEL_LENS), BLANK, label_loop=label_loop)
        if order is not None:
            edges, costs = tf.gather(edges, order, axis=1), tf.gather(costs, order)
        acceptors = acceptors_of_edge_list(edges, costs, ends)
        return [
            align(scores(), tf.constant(LENS), acceptors)
            for align in (soft_alignment_of_acceptors, best_path_of_acceptors)
        ], edges

    results, edges = run(None)
    if shuffled:
        results, _ = run(tf.constant(np.random.default_rng(2).permutation(edges.shape[1])))
    topology = ctc_topology(tf.constant(LABELS), tf.constant(LABEL_LENS), BLANK, label_loop=label_loop)
    for (values, total), align in zip(results, (soft_alignment, best_alignment)):
        expected, expected_total = align(scores(), tf.constant(LENS), topology)
        np.testing.assert_allclose(total, expected_total, rtol=1e-5)
        np.testing.assert_allclose(values, expected, atol=1e-5)


def test_numbers_of_states_and_costs():
    """Sequence 1 begins in its highest state, and ends in one between; sequence 0 has no edges."""
    edges = tf.constant([[7, 5, 5, 7], [5, 5, 6, 6], [0, 1, 2, 3], [1, 1, 1, 1]])
    costs = tf.constant([0.5, 0.25, 0.125, 9.0])
    acceptors = acceptors_of_edge_list(edges, costs, tf.constant([[0, 7], [1, 6]]))
    np.testing.assert_array_equal(acceptors.num_states, [2, 3])
    path, total = best_path_of_acceptors(tf.zeros([3, 2, 4]), tf.constant([3, 3]), acceptors)
    np.testing.assert_array_equal(path[:, 1], [0, 1, 2])
    np.testing.assert_allclose(total, [-np.inf, -0.875])


def test_begin_and_end_in_one_state():
    with pytest.raises(tf.errors.InvalidArgumentError, match="must differ"):
        acceptors_of_edge_list(tf.constant([[0], [0], [1], [0]]), tf.zeros([1]), tf.constant([[0], [0]]))
