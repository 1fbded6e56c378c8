"""Forward-backward and Viterbi against the enumeration of all paths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.ops.sequence.ctc_variants import ctc_variant
from returnn_tf.ops.sequence.fast_bw import best_alignment, chain_topology, ctc_topology, soft_alignment

LENS = [5, 5, 4, 3, 3, 0, 0]
LABEL_LENS = [3, 3, 1, 0, 3, 1, 0]


def _labels(blank: int) -> np.ndarray:
    a, b = [label for label in range(3) if label != blank]
    rows = [[a, b, b], [b, b, a], [a, 0, 0], [0, 0, 0], [b, b, b], [a, 0, 0], [0, 0, 0]]
    return np.array(rows, "int32")


def _paths(scores: np.ndarray, labels: Sequence[int], blank: int, loop: bool) -> list[tuple[float, tuple[int, ...]]]:
    result = []
    for path in itertools.product(range(3), repeat=len(scores)):
        emitted = [c for c, _ in itertools.groupby(path)] if loop else list(path)
        if [c for c in emitted if c != blank] == list(labels):
            result.append((float(scores[np.arange(len(scores)), list(path)].sum()), path))
    return result


@pytest.mark.parametrize("blank", [0, 1, 2])
@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ctc_topology(blank: int, loop: bool, dtype: str) -> None:
    scores = np.random.default_rng(blank).normal(size=(5, 7, 3)).astype(dtype)
    labels = _labels(blank)
    topology = ctc_topology(tf.constant(labels), tf.constant(LABEL_LENS), blank, label_loop=loop)
    posteriors, total = soft_alignment(tf.constant(scores), tf.constant(LENS), topology)
    best, score = best_alignment(tf.constant(scores), tf.constant(LENS), topology)
    assert posteriors.dtype.name == dtype
    for b, (n, m) in enumerate(zip(LENS, LABEL_LENS)):
        paths = _paths(scores[:n, b], labels[b, :m], blank, loop)
        expected = np.zeros([5, 3])
        if paths:
            np.testing.assert_allclose(total[b], np.logaddexp.reduce([s for s, _ in paths]), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(score[b], max(paths)[0], rtol=1e-4, atol=1e-5)
            assert tuple(best[:n, b].numpy()) == max(paths)[1]
            for s, path in paths:
                expected[np.arange(n), list(path)] += np.exp(s - total[b].numpy())
        else:
            assert total[b] == -np.inf and score[b] == -np.inf
        np.testing.assert_allclose(posteriors[:, b], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_long_sequences_stay_finite() -> None:
    scores = tf.math.log_softmax(tf.random.stateless_normal([400, 2, 5], [1, 2]) * 30.0)
    labels = tf.constant([[0, 1, 2, 3] * 20, [1, 1, 2, 2] * 20])
    posteriors, total = soft_alignment(scores, tf.constant([400, 300]), ctc_topology(labels, tf.constant([80, 80]), 4))
    assert np.isfinite(total).all()
    sums = tf.reduce_sum(posteriors, axis=2).numpy()
    np.testing.assert_allclose(sums[:300], 1.0, rtol=1e-2)
    np.testing.assert_array_equal(sums[300:, 1], 0.0)


def test_chain() -> None:
    scores = np.random.default_rng(5).normal(size=(4, 2, 3)).astype("float32")
    posteriors, total = soft_alignment(tf.constant(scores), tf.constant([4, 2]), chain_topology(tf.constant([2, 3]), 3))
    paths = [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]]
    values = [scores[range(4), 0, path].sum() for path in paths]
    np.testing.assert_allclose(total[0], np.logaddexp.reduce(values), rtol=1e-5)
    assert total[1] == -np.inf
    np.testing.assert_array_equal(posteriors[:, 1], 0.0)


@pytest.mark.parametrize("max_approx", [False, True])
def test_scores_that_are_no_numbers_show_in_the_loss(max_approx):
    scores = np.log(np.full([4, 2, 3], 1 / 3, "float32"))
    scores[:, 0] = float("nan")
    labels = tf.constant([[0, 1], [0, 1]])
    lens = tf.constant([4, 4])
    loss = ctc_variant(scores, lens, labels, tf.constant([2, 2]), blank=2, normalized=True, max_approx=max_approx)
    assert np.isnan(loss[0]) and np.isfinite(loss[1])
