"""The best labels of a softmax: against sorted rows, ties, wrong shapes."""

import numpy as np
import pytest

from returnn_tf.native.decoding.best_labels import best_labels_ops, native_best_labels
from returnn_tf.util.lazy_tf import tf


@pytest.fixture(scope="module")
def ops():
    found = best_labels_ops()
    assert found is not None, "the native op has to compile where the tests run"
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("labels, count", [(1, 1), (7, 7), (300, 12), (1000, 999), (4001, 3), (4001, 4), (4001, 100)])
def test_best_labels(ops, labels, count):
    x = np.random.RandomState(1).randint(-300, 300, (5, labels)).astype("float32") / 16  # with ties
    values, indices, log_sums = (y.numpy() for y in native_best_labels(ops, tf.constant(x), count))
    order = np.argsort(-x, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=1))
    expected = np.log(np.exp(x.astype("float64") - x.max(axis=1, keepdims=True)).sum(axis=1))
    np.testing.assert_allclose(log_sums, expected, rtol=1e-6, atol=5e-7)  # the sum may be near 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("others", [-np.inf, -1e30, -0.0])
@pytest.mark.parametrize("step", [1, 2, 100, 4000])
def test_best_labels_where_most_are_equal(ops, others, step):
    """Each step-th label has a score of its own, rising or falling; the others are equal, and may be among the best."""
    x = np.full((2, 4001), others, "float32")
    x[0, ::step] = np.arange(1, 1 + len(x[0, ::step]))
    x[1, ::step] = x[0, ::step][::-1]
    values, indices, _ = (y.numpy() for y in native_best_labels(ops, tf.constant(x), 50))
    order = np.argsort(-x, axis=1, kind="stable")[:, :50]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=1))


def test_wrong_input(ops):
    with pytest.raises(tf.errors.InvalidArgumentError, match="for 5 labels"):
        native_best_labels(ops, tf.zeros([3, 4]), 5)
