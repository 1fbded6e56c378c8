"""Products on the tile unit and by vectors: values, gradients, where they are used, wrong input."""

from functools import partial

import numpy as np
import pytest

from returnn_tf.native import product, weight_gradient
from returnn_tf.native.library import load
from returnn_tf.native.self_test import reasons_not_used
from returnn_tf.ops.cells.base import project
from returnn_tf.util.lazy_tf import tf
from tests.native.drivers import check_driver
from tests.native.tiles import BFLOAT16_TARGETS

ORDERS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.fixture(scope="module")
def ops():
    """Also where TensorFlow's own products are used."""
    return load("product", product.self_test)


@pytest.mark.parametrize(
    "size", [(1, 3, 5), (40, 70, 33), (64, 32, 64), (90, 400, 700), (33, 650, 16), (250, 30, 1100)], ids=str
)
@pytest.mark.parametrize("transpose_a, transpose_b", ORDERS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients(ops, size, transpose_a, transpose_b, with_bias):
    """As those of TensorFlow in float64, and as close to them as its own in float32."""
    rows, depth, columns = size
    rng = np.random.RandomState(1)
    a, b, bias, weight = (
        rng.normal(0, 1, shape) for shape in ((rows, depth), (depth, columns), (columns,), (rows, columns))
    )
    a, b = (x.T if transposed else x for x, transposed in ((a, transpose_a), (b, transpose_b)))
    order = {"transpose_a": transpose_a, "transpose_b": transpose_b}

    def run(multiply, dtype):
        tensors = [tf.constant(x, dtype) for x in ((a, b, bias) if with_bias else (a, b))]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = multiply(*tensors)
            objective = tf.reduce_sum(y * tf.constant(weight, dtype))
        return [y, *tape.gradient(objective, tensors)]

    def plain(a, b, bias=0.0):
        return tf.matmul(a, b, **order) + bias

    def native(a, b, bias=None):
        return product.native_matmul(ops, a, b, bias, **order)

    exact = run(plain, "float64")
    for result, close, value in zip(run(native, "float32"), run(plain, "float32"), exact):
        assert result.shape == value.shape
        error, usual = (np.abs(x.numpy() - value.numpy()).max() for x in (result, close))
        assert error <= 3 * usual + 1e-6 * np.abs(value.numpy()).max()


@pytest.mark.parametrize("size", [(1, 3, 5), (40, 70, 33), (64, 1100, 64), (33, 40, 700)], ids=str)
@pytest.mark.parametrize("transpose_a, transpose_b", ORDERS)
def test_rounded_values_and_gradients(ops, size, transpose_a, transpose_b):
    """Closer to those in float64 than TensorFlow's in bfloat16, which rounds the results, too."""
    rows, depth, columns = size
    rng = np.random.RandomState(1)
    a, b, weight = (rng.normal(0, 1, shape) for shape in ((rows, depth), (depth, columns), (rows, columns)))
    a, b = (x.T if transposed else x for x, transposed in ((a, transpose_a), (b, transpose_b)))
    order = {"transpose_a": transpose_a, "transpose_b": transpose_b}

    def run(multiply, dtype):
        tensors = [tf.constant(x, dtype) for x in (a, b)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = multiply(*tensors)
            objective = tf.reduce_sum(y * tf.constant(weight, dtype))
        return [x.numpy() for x in (y, *tape.gradient(objective, tensors))]

    def in_bfloat16(a, b):
        low = (tf.cast(x, tf.bfloat16) for x in (a, b))
        return tf.cast(tf.matmul(*low, **order), tf.float32)

    exact = run(partial(tf.matmul, **order), "float64")
    native = run(partial(product.native_matmul, ops, **order, rounded=True), "float32")
    for result, theirs, value in zip(native, run(in_bfloat16, "float32"), exact):
        error, usual = (np.sqrt(np.mean((x - value) ** 2)) for x in (result, theirs))
        assert result.shape == value.shape and 0 < error <= usual
    low = [tf.cast(tf.cast(x, tf.bfloat16), tf.float64) for x in (a, b)]
    np.testing.assert_allclose(native[0], tf.matmul(*low, **order), atol=1e-5 * np.sqrt(depth))


@pytest.mark.parametrize("size", [(0, 3, 5), (40, 0, 50), (40, 3, 0)], ids=str)
def test_empty(ops, size):
    rows, depth, columns = size
    y = product.native_matmul(
        ops, tf.ones([rows, depth]), tf.ones([depth, columns]), tf.ones([columns]), transpose_a=False, transpose_b=False
    )
    np.testing.assert_array_equal(y, np.full((rows, columns), depth + 1))


@pytest.mark.parametrize(
    "a, b, bias, text",
    [
        ((3, 4), (5, 6), (6,), "the factors do not fit: [3,4] and [5,6]"),
        ((3, 4), (4, 6), (5,), "the bias has to be [6], but is [5]"),
        ((3, 4, 2), (4, 6), (6,), "both factors have to be matrices, but are [3,4,2] and [4,6]"),
    ],
)
def test_wrong_shapes(ops, a, b, bias, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        ops.rtf_product(
            a=tf.ones(a), b=tf.ones(b), bias=tf.ones(bias), transpose_a=False, transpose_b=False, has_bias=True
        )
    assert text in str(info.value)


def test_wrong_shapes_are_found_while_tracing(ops):
    for shapes, has_bias in ((((3, 4), (5, 6), (6,)), False), (((3, 4), (4, 6), (5,)), True)):

        @tf.function(autograph=False)
        def multiply(a, b, bias, has_bias=has_bias):
            return ops.rtf_product(a=a, b=b, bias=bias, transpose_a=False, transpose_b=False, has_bias=has_bias)

        with pytest.raises(ValueError, match="Dimensions must be equal"):
            multiply.get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes))


def test_unknown_shapes_and_second_derivatives(ops):
    """The gradient of a gradient is that of TensorFlow's own product."""
    rng = np.random.RandomState(1)
    a, b = (tf.constant(rng.normal(0, 1, shape), tf.float32) for shape in ((40, 50), (50, 33)))

    def gradient_of_gradient(multiply):
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, None])])
        def run(a, b):
            with tf.GradientTape() as outer:
                outer.watch(b)
                with tf.GradientTape() as inner:
                    inner.watch(a)
                    y = tf.reduce_sum(multiply(a, b) ** 3)
                first = inner.gradient(y, a)
            return outer.gradient(first, b)

        return run(a, b).numpy()

    native = gradient_of_gradient(
        lambda a, b: product.native_matmul(ops, a, b, None, transpose_a=False, transpose_b=False)
    )
    plain = gradient_of_gradient(tf.matmul)
    np.testing.assert_allclose(native, plain, atol=1e-5 * np.abs(plain).max())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_comes_through(ops, value):
    a = np.ones((40, 50), "float32")
    a[3, 7] = value
    y = product.native_matmul(ops, a, tf.ones([50, 60]), None, transpose_a=False, transpose_b=False).numpy()
    assert not np.isfinite(y[3]).any() and np.isfinite(np.delete(y, 3, axis=0)).all()


@pytest.mark.parametrize(
    "features, low, native",
    [
        ("avx2 fma avx512f amx_bf16 amx_tile avx512_bf16", None, True),
        ("avx2 fma avx512f avx512_bf16", None, False),
        ("avx2 fma", None, True),
        ("avx2", None, False),
        ("avx2 fma avx512f amx_bf16 amx_tile avx512_bf16", "bfloat16", True),
        ("avx2 fma avx512f avx512_bf16", "bfloat16", True),
        ("avx2 fma avx512f", "bfloat16", False),
        ("avx2 fma", "bfloat16", False),
        ("avx2 fma avx512f amx_bf16 amx_tile avx512_bf16", "float16", False),
    ],
)
def test_used_where_the_cpu_is_faster_with_it(monkeypatch, features, low, native):
    """For all frames of sequences, not for a single frame of each; for large matrices, not for other types."""
    seen = []

    def native_op(name, self_test):
        seen.append(name)  # and there is none: TensorFlow's own follows

    monkeypatch.setattr(product, "cpu_features", lambda: features)
    monkeypatch.setattr(product, "_forms", product._forms.__wrapped__)
    monkeypatch.setattr(product, "native_op", native_op)
    for dtype, shape, n_out, used in (
        ("float32", (2, 3, 320), 330, native),
        ("float32", (3, 320), 330, False),
        ("float32", (2, 3, 50), 3000, False),
        ("float32", (2, 3, 70), 900, False),
        ("float64", (2, 3, 320), 330, False),
    ):
        seen.clear()
        width = shape[-1]

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([*[None] * (len(shape) - 1), width], dtype)])
        def run(x, n_out=n_out):
            weights, bias = tf.ones([x.shape[-1], n_out], x.dtype), tf.ones([n_out], x.dtype)
            return project(x, weights, bias, product_dtype=low if x.dtype == tf.float32 else None)

        y = run(tf.ones(shape, dtype))
        np.testing.assert_allclose(y, np.full((*shape[:-1], n_out), width + 1), rtol=4e-3 if low else 0)
        assert y.dtype == dtype and seen == (["product"] if used else [])


LACKS = {
    product._TILES: "the compiler or Linux does not support the tile unit",
    product._VECTORS: "the compiler does not support AVX2",
    product._PAIRS: "the compiler does not support AVX512_BF16",
}
EACH = [((form,), None, text) for form, text in LACKS.items()]


@pytest.mark.parametrize(
    "forms, low, text",
    [*EACH, ((product._TILES, product._PAIRS), "bfloat16", LACKS[product._TILES] + "; " + LACKS[product._PAIRS])],
)
def test_not_used_where_the_library_lacks_it(monkeypatch, ops, forms, low, text):
    """An old compiler, or a Linux that does not let the process use it: TensorFlow's own products are faster then."""
    monkeypatch.setattr(product, "_forms", lambda *_: forms)
    monkeypatch.setattr(product, "_library_has", lambda _: False)
    assert product.product_ops(tf.float32, low) is None and product.reason_not_used(low) == text
    monkeypatch.setattr(product, "_library_has", lambda form: form == forms[-1])
    assert product.product_ops(tf.float32, low) is not None and not product.reason_not_used(low)
    monkeypatch.setattr(product, "_forms", lambda *_: ())
    assert product.product_ops(tf.float32) is None
    assert product.reason_not_used() == "this CPU has neither a tile unit nor AVX2 without AVX-512"
    assert product.reason_not_used("bfloat16") == "this CPU has neither a tile unit nor AVX512_BF16"


@pytest.mark.parametrize("tiles, used", [(True, False), (False, True)])
def test_size_from_which_the_form_that_there_is_is_faster(monkeypatch, ops, tiles, used):
    """Without the tile unit, that of the next form."""
    monkeypatch.setattr(product, "_forms", lambda *_: (product._TILES, product._PAIRS))
    monkeypatch.setattr(product, "_library_has", lambda form: tiles or form == product._PAIRS)
    size = [None, 300, 300]
    assert product._PAIRS.least_size <= size[1] * size[2] < product._TILES.least_size
    assert (product.product_ops(tf.float32, "bfloat16", size) is not None) == used


@pytest.mark.parametrize(
    "forms, text",
    [
        ({None: (product._TILES,), "bfloat16": (product._TILES,)}, ""),
        ({"bfloat16": (product._PAIRS,)}, "for float32: this CPU has neither a tile unit nor AVX2 without AVX-512"),
        ({None: (product._VECTORS,)}, "for bfloat16: this CPU has neither a tile unit nor AVX512_BF16"),
    ],
)
def test_reasons_not_used(monkeypatch, forms, text):
    monkeypatch.setattr(product, "_forms", lambda low=None: forms.get(low, ()))
    monkeypatch.setattr(product, "_library_has", lambda _: True)
    assert reasons_not_used() == text


def test_used_for_gradients_of_weights(monkeypatch):
    seen = []
    monkeypatch.setattr(weight_gradient, "matmul", lambda *args, **kwargs: seen.append(1) or tf.matmul(*args, **kwargs))
    h, dz = tf.ones([5, 3, 4]), tf.ones([5, 3, 16])
    y = weight_gradient.weight_gradient(h, tf.zeros([3, 4]), dz, tf.constant([5, 5, 5]), False)
    np.testing.assert_array_equal(y, np.full((4, 16), 12))
    assert len(seen) == 2


@pytest.mark.slow
@pytest.mark.parametrize("target", BFLOAT16_TARGETS)
def test_instruction_sets(target, tmp_path):
    """Each form, of floats and of rounded factors, is as good as sums in float allow, for any number of threads."""
    check_driver("product", BFLOAT16_TARGETS[target], ("-O2", "-pthread"), tmp_path)
