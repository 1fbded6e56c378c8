"""Diagonal linear recurrences: against numpy frame by frame, ragged, both directions, numeric gradients."""

import numpy as np
import pytest

from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.lazy_tf import tf


def by_frames(a, b, h, lengths, reverse):
    out = np.zeros_like(b)
    for t in range(len(b))[:: -1 if reverse else 1]:
        runs = (t < lengths)[:, None]
        h = np.where(runs, (a if a.ndim == 1 else a[t]) * h + b[t], h)
        out[t] = np.where(runs, h, 0)
    return out, h


def arrays(kind, constant, n_frames=11, batch=4, n=5):
    rng = np.random.RandomState(1)
    shapes = [(n,) if constant else (n_frames, batch, n), (n_frames, batch, n), (batch, n)]
    made = [rng.normal(0, 0.7, shape).astype("float32") for shape in shapes]
    if kind == "complex":
        made = [(x + 1j * rng.normal(0, 0.7, x.shape)).astype("complex64") for x in made]
    lengths = rng.randint(0, n_frames + 1, batch).astype("int32")
    lengths[:2] = n_frames, 0
    return made, lengths


def loss_of(results, weights):
    return tf.add_n([tf.reduce_sum(tf.math.real(y * w)) for y, w in zip(results, weights)])


@pytest.mark.parametrize("portable", [True, False], ids=["plain", "default"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("constant", [False, True], ids=["by frame", "constant"])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_values_and_gradients(kind, constant, reverse, portable):
    inputs, lengths = arrays(kind, constant)
    rng = np.random.RandomState(2)
    expected = by_frames(*inputs, lengths, reverse)
    weights = [rng.normal(0, 1, y.shape).astype(y.dtype) for y in expected]
    tensors = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        if portable:
            with portable_ops():
                results = linear_recurrence(*tensors, lengths, reverse)
        else:
            results = linear_recurrence(*tensors, lengths, reverse)
        loss = loss_of(results, weights)
    for y, exact in zip(results, expected):
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-5)
    gradients = [x.numpy() for x in tape.gradient(loss, tensors)]
    directions = [
        rng.normal(0, 1, x.shape) + (1j * rng.normal(0, 1, x.shape) if kind == "complex" else 0) for x in inputs
    ]
    wide = [x.astype("complex128" if kind == "complex" else "float64") for x in inputs]
    for index, (gradient, direction) in enumerate(zip(gradients, directions)):
        ends = []
        for step in (1e-5, -1e-5):
            shifted = [x + step * direction if i == index else x for i, x in enumerate(wide)]
            ends.append(sum((w * y).real.sum() for w, y in zip(weights, by_frames(*shifted, lengths, reverse))))
        # TensorFlow's gradient of a complex number z is that of its parts: d/dre + i d/dim
        slope = (gradient * direction.conj()).real.sum()
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("n_frames", [0, 1, 2, 17])
def test_lengths_of_time(n_frames):
    (a, b, h0), _ = arrays("real", False, n_frames, batch=2, n=3)
    full = np.full(2, n_frames)
    for reverse in (False, True):
        for y, exact in zip(
            linear_recurrence(a, tf.constant(b), h0, None, reverse), by_frames(a, b, h0, full, reverse)
        ):
            np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-6)


def test_padding_is_not_read():
    (a, b, h0), lengths = arrays("real", False)
    exact = by_frames(a, b, h0, lengths, False)
    for x in (a, b):
        x[np.arange(len(x))[:, None] >= lengths] = np.nan
    for y, y_exact in zip(linear_recurrence(a, tf.constant(b), h0, lengths), exact):
        np.testing.assert_allclose(y, y_exact, rtol=1e-5, atol=1e-6)
