"""Stacking the entries of arrays."""

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.ops.frames.stacked import stacked


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("size, written", [(3, 3), (0, 0), (3, 2), (2, 0)])
def test_entries_that_are_not_written_are_zeros(size, written, static):
    @tf.function(autograph=False)
    def run(size, written, batch):
        array = tf.TensorArray(tf.float32, size, element_shape=[None, 2])
        shape = [4, 2] if static else [batch, 2]
        _, array = tf.while_loop(
            lambda t, _: t < written, lambda t, a: (t + 1, a.write(t, tf.fill([batch, 2], 1.0))), (0, array)
        )
        return stacked(array, shape)

    value = run(tf.constant(size), tf.constant(written), tf.constant(4))
    assert value.shape == (size, 4, 2)
    np.testing.assert_array_equal(value[:written], 1)
    np.testing.assert_array_equal(value[written:], 0)


@pytest.mark.parametrize("size", [0, 2])
def test_without_a_graph(size):
    array = tf.TensorArray(tf.float32, size, element_shape=[None, 2])
    for index in range(size):
        array = array.write(index, tf.ones([4, 2]))
    np.testing.assert_array_equal(stacked(array, [tf.constant(4), 2]), np.ones([size, 4, 2]))


def test_scalars_and_unknown_sizes():
    @tf.function(autograph=False)
    def run(shape, value):
        array = tf.TensorArray(tf.float32, 2, element_shape=value.shape).write(0, value).write(1, value)
        return stacked(array, shape)

    assert run([], tf.constant(1.0)).shape == (2,)
    assert run([-1], tf.constant([1.0, 2.0, 3.0])).shape == (2, 3)
