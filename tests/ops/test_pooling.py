"""Pooling in all its forms against plain loops."""

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.ops.dense.convolution import same_padding
from returnn_tf.ops.dense.pooling import pool

RNG = np.random.default_rng(5)
X = RNG.normal(size=[3, 7, 2]).astype("float32")
MASK = np.arange(7)[None, :, None] < np.array([7, 2, 4])[:, None, None]


def expected_pool(mode, size, stride, dilation, padding, mask):
    left, right = same_padding(7, (size - 1) * dilation + 1, stride) if padding == "same" else (0, 0)
    left, right = padding if isinstance(padding, tuple) else (left, right)
    frames = -(-(7 + left + right - (size - 1) * dilation) // stride)
    y = np.zeros([3, frames, 2], "float32")
    for b in range(3):
        for t in range(frames):
            sources = [t * stride + k * dilation - left for k in range(size)]
            sources = [s for s in sources if 0 <= s < 7 and (mask is None or mask[b, s, 0])]
            if sources:
                y[b, t] = X[b, sources].max(0) if mode == "max" else X[b, sources].mean(0)
            elif mode == "max" and mask is None:  # a window that the mask excludes as a whole gives 0
                y[b, t] = np.finfo("float32").min
    return y


@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("padding", ["same", "valid", (1, 2)])
@pytest.mark.parametrize("size,stride,dilation", [(2, 2, 1), (3, 1, 1), (3, 2, 1), (2, 1, 2), (2, 3, 2)])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_pool(mode, padding, size, stride, dilation, mask):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        given = None if mask is None else tf.constant(mask)
        y = pool(x, mode, [size], strides=[stride], dilations=[dilation], padding=[padding], mask=given)
    np.testing.assert_allclose(y, expected_pool(mode, size, stride, dilation, padding, mask), rtol=1e-5, atol=1e-6)
    grad = tape.gradient(y, x).numpy()
    assert np.isfinite(grad).all()
    if mask is not None:
        assert not grad[~np.broadcast_to(mask, grad.shape)].any()


def test_a_window_of_one_frame_is_the_identity():
    x = tf.constant(X)
    assert pool(x, "max", [1], strides=[1], dilations=[1], padding=["same"]) is x


@pytest.mark.parametrize("mode", ["max", "avg"])
def test_too_few_frames_leave_none(mode):
    x = tf.Variable(X[:, :1])
    with tf.GradientTape() as tape:
        y = pool(x, mode, [3], strides=[3], dilations=[1], padding=["valid"])
    assert y.shape == (3, 0, 2) and not tape.gradient(y, x).numpy().any()
