"""Convolution in all its forms against plain loops, and its gradients by linearity."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.ops.dense.convolution import convolution, same_padding
from returnn_tf.ops.dense.transposed_convolution import transposed_convolution, transposed_length

RNG = np.random.default_rng(5)


def expected_convolution(x, w, strides, dilations, groups, padding):
    rank = len(strides)
    size, n_out = w.shape[:rank], w.shape[-1]
    pads = []
    for n, k, s, d, p in zip(x.shape[1:-1], size, strides, dilations, padding):
        pads.append(same_padding(n, (k - 1) * d + 1, s) if p == "same" else (0, 0) if p == "valid" else p)
    x = np.pad(x, [(0, 0), *pads, (0, 0)])
    out = [max(-(-(n - (k - 1) * d) // s), 0) for n, k, s, d in zip(x.shape[1:-1], size, strides, dilations)]
    y = np.zeros([x.shape[0], *out, n_out], "float32")
    per_in, per_out = w.shape[-2], n_out // groups
    for t in itertools.product(*map(range, out)):
        for k in itertools.product(*map(range, size)):
            frame = x[(slice(None), *(a * s + b * d for a, s, b, d in zip(t, strides, k, dilations)))]
            for g in range(groups):
                part = frame[:, g * per_in : (g + 1) * per_in] @ w[k][:, g * per_out : (g + 1) * per_out]
                y[(slice(None), *t, slice(g * per_out, (g + 1) * per_out))] += part
    return y


CASES = [
    # length, filter, strides, dilations, groups, padding
    ([7], [3], [1], [1], 1, ["same"]),
    ([7], [4], [2], [1], 1, ["same"]),
    ([7], [3], [2], [2], 1, ["same"]),
    ([7], [3], [3], [1], 1, ["valid"]),
    ([7], [3], [2], [2], 1, ["valid"]),
    ([2], [3], [1], [1], 1, ["valid"]),
    ([1], [4], [2], [1], 1, ["valid"]),
    ([7], [3], [2], [1], 1, [(1, 2)]),
    ([7], [3], [1], [1], 4, ["same"]),
    ([7], [3], [1], [2], 4, ["same"]),
    ([7], [3], [2], [1], 4, ["valid"]),
    ([7], [3], [2], [2], 4, ["same"]),
    ([7], [3], [2], [1], 2, ["same"]),
    ([7], [2], [1], [3], 2, [(2, 0)]),
    ([5, 4], [3, 2], [1, 2], [1, 1], 1, ["same", "valid"]),
    ([5, 4], [3, 2], [2, 2], [1, 1], 4, ["same", "same"]),
    ([5, 4], [3, 2], [1, 2], [1, 1], 4, ["same", "same"]),
    ([5, 4], [2, 2], [1, 1], [2, 1], 2, ["valid", "valid"]),
    ([4, 3, 5], [2, 2, 3], [1, 1, 2], [1, 1, 1], 1, ["same", "same", "same"]),
    ([4, 3, 5], [2, 2, 3], [1, 1, 2], [1, 1, 1], 2, ["valid", "same", "valid"]),
]


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lengths,size,strides,dilations,groups,padding", CASES)
def test_convolution(lengths, size, strides, dilations, groups, padding, dynamic):
    shape = [None, *([None] * len(size) if dynamic else lengths), 4]
    x = RNG.normal(size=[2, *lengths, 4]).astype("float32")
    w = RNG.normal(size=[*size, 4 // groups, 8]).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec(w.shape)], autograph=False)
    def conv(x, w):
        return convolution(x, w, strides=strides, dilations=dilations, groups=groups, padding=padding)

    expected = expected_convolution(x, w, strides, dilations, groups, padding)
    with tf.GradientTape() as tape:
        inputs = [tf.constant(x), tf.constant(w)]
        tape.watch(inputs)
        y = conv(*inputs)
        direction = RNG.normal(size=expected.shape).astype("float32")
        objective = tf.reduce_sum(y * direction)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    # y is linear in x and in w, so the gradient times the input is the objective.
    for value, grad in zip(inputs, tape.gradient(objective, inputs)):
        np.testing.assert_allclose(np.sum(grad * value), objective, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size,stride", [(3, 1), (3, 2), (2, 3), (4, 2), (1, 2)])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("extra,cut", [(None, 0), (None, 1), (0, 0), (1, 0)])
def test_transposed_convolution(size, stride, padding, extra, cut):
    x = RNG.normal(size=[2, 4, 3]).astype("float32")
    w = RNG.normal(size=[size, 5, 3]).astype("float32")
    frames = transposed_length(4, size, stride, padding, extra)
    full = np.zeros([2, 3 * stride + size + 20, 5], "float32")
    for t in range(4):
        for k in range(size):
            full[:, t * stride + k] += x[:, t] @ w[k].T
    left = max(3 * stride + size - frames, 0) // 2 if padding == "same" or extra is not None else 0
    expected = full[:, left + cut : max(left + frames - cut, left + cut)]
    y = transposed_convolution(
        tf.constant(x),
        tf.constant(w),
        strides=[stride],
        padding=padding,
        output_padding=None if extra is None else [extra],
        remove_padding=[cut],
    )
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lengths,size", [([231], [32]), ([4, 60], [3, 32])])
def test_depthwise_gradient_of_long_filters(lengths, size):
    """The CPU kernel of TensorFlow fails for some of these sizes, so that another form is taken there."""
    x, w = tf.random.normal([4, *lengths, 128]), tf.random.normal([*size, 1, 128])
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        loss = tf.reduce_sum(convolution(x, w, groups=128, padding=["same"] * len(size)) ** 2)
    for value, grad in zip((x, w), tape.gradient(loss, [x, w])):
        np.testing.assert_allclose(tf.reduce_sum(value * grad), 2 * loss, rtol=1e-3)
