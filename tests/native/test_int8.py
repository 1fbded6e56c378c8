"""Products with matrices of int8: all forms give the same bits; what is not finite; wrong shapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from returnn_tf.logging.log import log
from returnn_tf.native import library
from returnn_tf.native.at_once import with_ops_at_once
from returnn_tf.native.int8 import native_int8_product, self_test
from returnn_tf.native.library import load
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops import int8, rounded
from returnn_tf.ops.int8 import Int8Matrix
from returnn_tf.util.lazy_tf import tf
from tests.native.drivers import check_driver
from tests.native.tiles import EMULATED_TILES, WITH_VECTORS_OF_TILES

# what this machine has, the tile unit (Intel AMX) emulated, AVX-VNNI, AVX2, and plain loops
TARGETS = {
    "native": ("-march=native",),
    "tiles": (*WITH_VECTORS_OF_TILES, *EMULATED_TILES),
    "avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
    "avx2": ("-march=x86-64-v3",),
    "baseline": (),
}


@pytest.fixture(scope="module")
def ops():
    return load("int8", self_test)


def _matrix(w):
    """Return a matrix [depth, channels] as `Int8Matrix`."""
    numbers, scales = map(tf.constant, Int8Matrix.round(w.T))
    return Int8Matrix(numbers, *w.shape, scales)


def _random(seed, *shape):
    return np.random.RandomState(seed).normal(0, 1, shape).astype("float32")


@pytest.mark.parametrize("depth, channels", [(1, 1), (5, 16), (64, 17), (130, 200), (2100, 33)])
def test_forms_give_the_same_bits(ops, depth, channels):
    """The native op and TensorFlow's ops; more than 1040 numbers are added in several sums there."""
    x, w = _random(1, 3, 7, depth), _matrix(_random(2, depth, channels))
    x[1, 2] = 0
    native = w.product(tf.constant(x))
    with portable_ops():
        plain = w.product(tf.constant(x))
    np.testing.assert_array_equal(native, plain)
    assert native.shape == (3, 7, channels) and not native.numpy()[1, 2].any()


def test_without_the_native_op(monkeypatch, caplog):
    """A warning names the fix, once; a graph that is meant to need no library has none."""
    x, w = tf.constant(_random(1, 2, 8)), _matrix(_random(2, 8, 16))
    expected = w.product(x)
    monkeypatch.setattr(int8, "int8_ops", lambda: None)
    with portable_ops():
        w.product(x)
    assert not caplog.messages
    for _ in range(2):
        np.testing.assert_array_equal(w.product(x), expected)
    (warning,) = caplog.messages
    assert "about three times as long" in warning and "returnn-tf doctor" in warning


def test_no_warning_while_the_native_op_is_compiled(ops, monkeypatch):
    """The graph that is traced meanwhile is not the one that runs."""
    x, w, found_ops = tf.constant(_random(1, 2, 8)), _matrix(_random(2, 8, 16)), []
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr("returnn_tf.native.at_once.find", lambda op: None)  # as with an empty cache

    def trace():
        found_ops.append(int8.int8_ops() is not None)
        return w.product(x)

    with log.collected_warnings() as found:
        with_ops_at_once(trace)
    assert found_ops == [False, True] and not found


@pytest.mark.parametrize("depth, channels, bound", [(512, 512, 0.012), (2048, 512, 0.012), (64, 10000, 0.012)])
def test_close_to_float64(ops, depth, channels, bound):
    """For normal numbers the error of a product is about 1 % of its standard deviation."""
    x, w = _random(1, 30, depth), _random(2, depth, channels)
    exact = x.astype("float64") @ w.astype("float64")
    error = _matrix(w).product(tf.constant(x)).numpy() - exact
    assert np.sqrt((error**2).mean() / (exact**2).mean()) < bound


def test_channels_have_scales_of_their_own(ops):
    w = _random(1, 40, 20) * np.logspace(-20, 20, 20, dtype="float32")
    x = _random(2, 6, 40)
    exact = x.astype("float64") @ w
    assert (np.abs(_matrix(w).product(tf.constant(x)) - exact).max(axis=0) < 0.03 * np.abs(exact).max(axis=0)).all()


@pytest.mark.parametrize("portable", [False, True])
def test_rows_that_are_not_finite_or_small(ops, portable):
    x = np.ones((7, 9), "float32")
    x[1, 3], x[2, 4], x[3, 5], x[4], x[5] = np.nan, np.inf, -np.inf, 1e-38, 2.0**-99
    w = _matrix(np.ones((9, 5)))
    if portable:
        with portable_ops():
            y = w.product(tf.constant(x)).numpy()
    else:
        y = w.product(tf.constant(x)).numpy()
    assert np.isnan(y[1:4]).all()
    np.testing.assert_array_equal(y[4], np.zeros(5))
    np.testing.assert_allclose(y[[0, 5, 6]], [[9.0] * 5, [9 * 2.0**-99] * 5, [9.0] * 5], rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (4, 16), (50, 17), (33, 100)])
def test_stored_numbers(shape):
    """What is read back has at most half a step of error, and is the same when it is stored again."""
    w = _random(1, *shape)
    w[0] = 0
    numbers, scales = Int8Matrix.round(w)
    back = Int8Matrix.restored([numbers, scales], *shape)
    assert (np.abs(back - w) <= 0.5001 * scales[:, None]).all() and not back[0].any()
    again = Int8Matrix.round(back)
    np.testing.assert_array_equal(again[0], numbers)
    np.testing.assert_allclose(again[1], scales, rtol=1e-6)
    matrix = Int8Matrix(tf.constant(numbers), shape[1], shape[0], tf.constant(scales))
    np.testing.assert_array_equal(matrix.values(), back.T)


def test_large_matrices_are_rounded_by_parts(monkeypatch):
    w = _random(1, 100, 50)
    expected = Int8Matrix.round(w)
    for at_once in (1, 2000):
        monkeypatch.setattr(rounded, "_AT_ONCE", at_once)
        for part, whole in zip(Int8Matrix.round(w), expected):
            np.testing.assert_array_equal(part, whole)


def test_products_at_the_same_time(ops):
    """Calls that share the threads of TensorFlow wait for their own tasks only, and each gives the same bits."""
    x, w = tf.constant(_random(1, 5, 300)), _matrix(_random(2, 300, 900))  # enough work to share it
    expected = w.product(x).numpy()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: w.product(x).numpy(), range(200)))
    np.testing.assert_array_equal(found, [expected] * len(found))


@pytest.mark.parametrize("labels", [[3], [[0, 31], [17, 16]]], ids=str)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_of_labels(labels, dtype):
    matrix = _matrix(_random(1, 37, 32))
    np.testing.assert_array_equal(matrix.rows(tf.constant(labels, dtype)), matrix.values().numpy().T[np.array(labels)])


def test_unknown_shapes(ops):
    w = _matrix(_random(1, 8, 20))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None, 8])])
    def run(x):
        y = w.product(x)
        assert y.shape.as_list() == [None, None, 20]
        return y

    assert run(tf.zeros([2, 0, 8])).shape == (2, 0, 20)
    x = tf.constant(_random(2, 2, 3, 8))
    np.testing.assert_array_equal(run(x), w.product(x))


@pytest.mark.parametrize(
    "x, w, scales, text",
    [
        ((3, 9), (1, 2, 16, 4), 16, "rows of [3,9] do not fit a matrix of 16 columns that has 128 bytes"),
        ((3, 8), (1, 2, 16, 4), 17, "do not fit a matrix of 17 columns"),
        ((), (1, 2, 16, 4), 16, "x has no axis"),
    ],
)
def test_wrong_shapes(ops, x, w, scales, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        native_int8_product(ops, tf.ones(x), tf.ones(w, tf.uint8), tf.ones([scales]))
    assert text in str(info.value) or "at least rank 1" in str(info.value)


def test_longest_product():
    """Sums of this depth fit, those of one number more may not."""
    assert Int8Matrix.longest * 127**2 < 2**31 <= (Int8Matrix.longest + 1) * 127**2


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_instruction_sets(target, tmp_path):
    """Each form gives the bits of plain loops."""
    check_driver("int8", TARGETS[target], ("-O2", "-pthread"), tmp_path)
