"""Products with matrices of bfloat16: all forms against float64, and wrong shapes."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.native.bfloat16 import self_test
from returnn_tf.native.library import load
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.bfloat16 import Bfloat16Matrix
from returnn_tf.ops.rounded import as_floats
from returnn_tf.util.lazy_tf import tf
from tests.native.drivers import check_driver
from tests.native.tiles import BFLOAT16_TARGETS


@pytest.fixture(scope="module")
def ops():
    return load("bfloat16", self_test)


def _rounded(x):
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float64).numpy()


def _matrix(w):
    """Return a matrix [depth, width] as `Bfloat16Matrix`."""
    return Bfloat16Matrix(tf.constant(Bfloat16Matrix.round(w.T)[0]), *w.shape)


def _random(seed, *shape):
    return np.random.RandomState(seed).normal(0, 1, shape).astype("float32")


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("depth, width", [(1, 1), (5, 16), (64, 17), (130, 200)])
def test_products(ops, depth, width, portable):
    """Both factors are rounded, sums are float32; what is not finite stays in its row."""
    x, w = _random(1, 3, 7, depth), _random(2, depth, width)
    exact = _rounded(x) @ _rounded(w)
    x[1, 2, 0], x[2, 3, 0] = np.nan, np.inf
    if portable:
        with portable_ops():
            y = _matrix(w).product(tf.constant(x)).numpy()
    else:
        y = _matrix(w).product(tf.constant(x)).numpy()
    finite = np.isfinite(x).all(axis=-1)
    np.testing.assert_allclose(y[finite], exact[finite], atol=1e-5 * np.sqrt(depth))
    assert np.isnan(y[1, 2]).all() and not np.isfinite(y[2, 3]).any()


@pytest.mark.parametrize("width, depth", [(1, 1), (4, 16), (50, 17), (33, 100)])
def test_stored_numbers(width, depth):
    """Values, rows and parts of a matrix are the numbers, rounded half to even."""
    w = _random(1, depth, width)
    matrix, expected = _matrix(w), _rounded(w)
    np.testing.assert_array_equal(matrix.values(), expected)
    parts = [matrix.numbers.numpy()]
    np.testing.assert_array_equal(Bfloat16Matrix.restored(parts, width, depth), expected.T)
    labels = np.array([[0, width - 1], [width // 2, 0]])
    np.testing.assert_array_equal(matrix.rows(tf.constant(labels)), expected.T[labels])
    for ends in (slice(2, None), slice(1, 5)):
        np.testing.assert_array_equal(as_floats(matrix[ends]), expected[ends])


@pytest.mark.parametrize("x, w, columns, text", [
    ((3, 5), (1, 2, 16, 2), 16, "rows of [3,5] do not fit a matrix of 16 columns that has 64 numbers"),
    ((3, 4), (1, 2, 16, 2), 17, "do not fit a matrix of 17 columns"),
    ((3, 4), (1, 2, 16, 2), 0, "0 columns"),
])  # fmt: skip
def test_wrong_shapes(ops, x, w, columns, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_bfloat16_product(x=tf.ones(x), w=tf.ones(w, tf.bfloat16), columns=columns)
    assert text in str(info.value)


@pytest.mark.slow
@pytest.mark.parametrize("target", BFLOAT16_TARGETS)
def test_instruction_sets(target, tmp_path):
    """Each form is as good as sums in float allow, for any number of threads."""
    check_driver("bfloat16", BFLOAT16_TARGETS[target], ("-O2", "-pthread"), tmp_path)
