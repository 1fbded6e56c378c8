"""Reductions and softmax where some entries don't count."""

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.ops.frames.reduce import masked_reduce, p_norm
from returnn_tf.ops.softmax import masked_softmax

X = np.random.default_rng(1).normal(size=(2, 4, 3)).astype("float32")
MASK = np.array([[True, True, True, True], [True, False, True, False]])[:, :, None]
NUMPY = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "logsumexp": lambda x, axis: np.log(np.sum(np.exp(x), axis=axis)),
}


@pytest.mark.parametrize("mode", sorted(NUMPY))
@pytest.mark.parametrize("axes", [[1], [1, 2], [0, 1], [0, 1, 2]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_only_the_entries_in_the_mask_count(mode, axes, keepdims):
    y = masked_reduce(mode, tf.constant(X), axes, tf.constant(MASK), keepdims=keepdims).numpy()
    rows = [X[b][MASK[b, :, 0]] for b in range(2)]
    if 0 in axes:
        expected = NUMPY[mode](np.concatenate(rows), axis=tuple(a - 1 for a in axes[1:]))
    else:
        expected = np.stack([NUMPY[mode](row, axis=tuple(a - 1 for a in axes)) for row in rows])
    assert y.shape == (tuple(1 if i in axes else s for i, s in enumerate(X.shape)) if keepdims else expected.shape)
    np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=1e-5)


@pytest.mark.parametrize("mode,expected", [("argmax", 0), ("argmin", 2)])
def test_arg_modes_skip_what_does_not_count(mode, expected):
    x = tf.constant([[1.0, 5.0, 0.0, -5.0]])
    y = masked_reduce(mode, x, [1], tf.constant([[True, False, True, False]]))
    assert y.dtype == tf.int32 and y.numpy().tolist() == [expected]


@pytest.mark.parametrize("mode,outside", [("any", True), ("all", False)])
def test_flags_that_do_not_count_decide_nothing(mode, outside):
    x = tf.constant([[not outside, outside, not outside, outside]])
    y = masked_reduce(mode, x, [1], tf.constant([[True, False, True, False]]))
    assert y.numpy().tolist() == [not outside]


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "logsumexp"])
def test_nothing_counts(mode):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = masked_reduce(mode, x, [1], tf.zeros([2, 4, 1], tf.bool))
    assert np.isfinite(tape.gradient(y, x)).all()
    if mode in ("sum", "mean"):
        assert not y.numpy().any()


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, float("inf")])
def test_p_norm(p):
    x = tf.concat([tf.constant(X), tf.zeros([1, 4, 3])], axis=0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = p_norm(x, p, [1, 2])
    ord_x = np.abs(X).reshape(2, -1)
    expected = ord_x.max(1) if p == float("inf") else (ord_x**p).sum(1) ** (1 / p)
    np.testing.assert_allclose(y, [*expected, 0], rtol=1e-5)
    assert p < 1 or np.isfinite(tape.gradient(y, x)).all()


@pytest.mark.parametrize("log_space", [False, True])
def test_softmax_without_any_entry(log_space):
    x = tf.constant([[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]])
    mask = tf.constant([[True, True, False], [False, False, False]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = masked_softmax(x, mask, log_space=log_space)
        picked = tf.reduce_sum(tf.where(mask, y, 0.0)[:, 0])
    none = -np.inf if log_space else 0
    first = np.log([1 / (1 + np.e), np.e / (1 + np.e)])
    np.testing.assert_allclose(y, [[*(first if log_space else np.exp(first)), none], [none] * 3], rtol=1e-5)
    assert np.isfinite(tape.gradient(picked, x)).all()


def test_softmax_over_several_axes_sums_to_one():
    y = masked_softmax(tf.constant(X), tf.constant(MASK), axes=[1, 2])
    np.testing.assert_allclose(np.sum(y, axis=(1, 2)), [1, 1], rtol=1e-5)
    assert not y.numpy()[1, 1].any()
