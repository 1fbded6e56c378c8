"""Windows and their sums against plain loops."""

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.ops.frames.gather import slices
from returnn_tf.ops.frames.packing import unflatten
from returnn_tf.ops.frames.pad import pad_axis
from returnn_tf.ops.frames.windows import interleave, overlap_add, sliding_windows


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_and_their_sum(size, stride, dynamic):
    x = np.random.default_rng(1).normal(size=(8, 2, 3)).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec([None if dynamic else 8, None, 3])], autograph=False)
    def run(x):
        windows = sliding_windows(x, size, stride=stride)
        return windows, overlap_add(windows, stride=stride)

    windows, total = run(x)
    count = -(-(8 - size + 1) // stride)
    expected = np.stack([[x[t * stride + i] for t in range(count)] for i in range(size)])
    np.testing.assert_array_equal(windows, expected)
    expected_total = np.zeros([count * stride + size - 1, 2, 3], "float32")
    for i in range(size):
        for t in range(count):
            expected_total[t * stride + i] += expected[i, t]
    np.testing.assert_allclose(total, expected_total, rtol=1e-5, atol=1e-6)


def test_windows_of_too_few_frames_are_none():
    assert sliding_windows(tf.zeros([2, 3]), 3).shape == (3, 0, 3)


def test_gradient_of_windows_counts_them():
    x = tf.Variable(tf.ones([5, 1]))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(sliding_windows(x, 3))
    np.testing.assert_array_equal(tape.gradient(y, x)[:, 0], [1, 2, 3, 2, 1])


def test_interleave():
    y = interleave([tf.constant([[1, 2], [3, 4]]), tf.constant([[5, 6], [7, 8]])], 1)
    np.testing.assert_array_equal(y, [[1, 5, 2, 6], [3, 7, 4, 8]])


@pytest.mark.parametrize("dtype,value", [("bool", True), ("int32", 3), ("float32", 0.5), ("string", b"a")])
def test_pad_axis_keeps_the_dtype(dtype, value):
    y = pad_axis(tf.zeros([2, 2], dtype), 1, 1, 0, value)
    assert y.dtype == dtype and y.shape == (2, 3) and y[0, 0].numpy() == value


@pytest.mark.parametrize("frames", [3, 0])
def test_parts_of_strings(frames):
    """What is not there is an empty string."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.string)], autograph=False)
    def parts(x):
        limits, sizes = tf.fill([2], tf.shape(x)[1]), tf.fill([2, 1], tf.shape(x)[1])
        return slices(x, tf.constant([0, 2]), 2, limits, axis=1, batch_dims=1), unflatten(x, sizes, [2])

    text = np.array([["a", "b", "c"], ["d", "e", "f"]], object)[:, :frames]
    cut, flat = ([[b"a", b"b"], [b"f", b""]], [[b"a", b"b"], [b"d", b"e"]]) if frames else ([[b"", b""]] * 2,) * 2
    assert [part.numpy().tolist() for part in parts(text)] == [cut, flat]
