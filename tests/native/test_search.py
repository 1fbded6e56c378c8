"""Native products of a search: against numpy, changed matrices, wrong shapes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from returnn_tf.native.after_product import AfterProduct
from returnn_tf.native.decoding.search import in_large_pages, pack, search_ops
from returnn_tf.ops.dense.in_beam import product_in_beam
from returnn_tf.util.lazy_tf import tf


@pytest.fixture(scope="module")
def ops():
    found = search_ops()
    assert found is not None, "the native search has to compile where the tests run"
    return found


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("once, other, out", [("bsd", "bd", "bs"), ("bshd", "bhs", "bhd"), ("sbhd", "bhd", "bhs")])
def test_product_in_beam(once, other, out, with_gradient):
    sizes = {"b": 3, "s": 5, "h": 2, "d": 17}
    rng = np.random.RandomState(1)
    x = rng.normal(0, 1, [sizes[i] for i in once]).astype("float32")
    y = rng.normal(0, 1, [sizes[i] * (4 if i == "b" else 1) for i in other]).astype("float32")
    expected = np.einsum("%s,%s->%s" % (once, other, out), x.repeat(4, axis=once.index("b")), y)
    found = product_in_beam(
        (tf.constant(x), once),
        (tf.constant(y), other),
        out,
        batch="b",
        beam=4,
        with_gradient=with_gradient,
        product_dtype=None,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows, depth, columns", [(0, 3, 5), (1, 1, 1), (13, 600, 64), (200, 70, 130), (5, 0, 3)])
def test_packed_product(ops, rows, depth, columns, transposed):
    """Several blocks of the depth and of the rows, panels that are not full."""
    rng = np.random.RandomState(1)
    shapes = (rows, depth), (depth, columns), columns, (rows, columns)
    x, w, bias, residual = (rng.normal(0, 1, shape).astype("float32") for shape in shapes)
    matrix = pack(ops, tf.constant(w.T if transposed else w), transposed=transposed)
    expected = x.astype("float64") @ w
    np.testing.assert_allclose(matrix.product(tf.constant(x)), expected, rtol=1e-4, atol=1e-4)
    found = matrix.product(tf.constant(x), AfterProduct(tf.constant(bias)))
    np.testing.assert_allclose(found, expected + bias, rtol=1e-4, atol=1e-4)
    found = matrix.product(tf.constant(x), AfterProduct(tf.constant(bias), tf.constant(residual), relu=True))
    np.testing.assert_allclose(found, residual + np.maximum(expected + bias, 0), rtol=1e-4, atol=1e-4)


def test_packed_rows_do_not_depend_on_others(ops):
    """A hypothesis gets the same bits in a batch of any size."""
    rng = np.random.RandomState(1)
    x, w = (tf.constant(rng.normal(0, 1, shape), tf.float32) for shape in ((29, 520), (520, 70)))
    matrix = pack(ops, w, transposed=False)
    alone = np.concatenate([matrix.product(x[i : i + 1]) for i in range(29)])
    np.testing.assert_array_equal(matrix.product(x), alone)


def test_products_at_the_same_time(ops):
    """Calls that share the threads of TensorFlow wait for their own tasks only, and each gives the same bits."""
    rng = np.random.RandomState(1)
    x, w = (tf.constant(rng.normal(0, 1, shape), tf.float32) for shape in ((3, 300), (300, 900)))
    matrix = pack(ops, w, transposed=False)
    expected = matrix.product(x).numpy()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: matrix.product(x).numpy(), range(200)))
    np.testing.assert_array_equal(found, [expected] * len(found))


def test_matrix_is_packed_again_after_a_change(ops):
    """A graph keeps the packed form of a variable until its numbers change, whatever changes them."""
    rng = np.random.RandomState(1)
    v = tf.Variable(rng.normal(0, 1, (70, 130)).astype("float32"))
    x = tf.constant(rng.normal(0, 1, (3, 70)), tf.float32)

    @tf.function(autograph=False)
    def product():
        return pack(ops, tf.convert_to_tensor(v), transposed=False).product(x)

    changes = [
        lambda: None,
        lambda: v.assign_add(tf.ones_like(v)),
        lambda: v.assign(2 * v),
        lambda: v[3, 4].assign(5.0),
        lambda: v.scatter_update(tf.IndexedSlices(tf.ones([1, 130]), [7])),
        lambda: tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=0.5, delta=tf.ones_like(v)),
    ]
    for change in [*changes, *reversed(changes)]:
        change()
        np.testing.assert_allclose(product(), x.numpy() @ v.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_matrix_in_large_pages(ops, dtype):
    """The copy of a rounded matrix has the same numbers; a small one is left where it is."""
    numbers = np.random.RandomState(1).randint(0, 255, (40, 33, 16, 4)).astype(tf.as_dtype(dtype).as_numpy_dtype)
    found = in_large_pages(numbers)
    assert isinstance(found, tf.Tensor) and found.dtype == dtype
    np.testing.assert_array_equal(found, numbers)
    small = numbers[0]
    assert in_large_pages(small) is small


@pytest.mark.parametrize(
    "run, text",
    [
        (lambda ops: pack(ops, tf.zeros([3, 4]), transposed=False).product(tf.zeros([2, 5])), "4 columns"),
        (
            lambda ops: pack(ops, tf.zeros([3, 4]), transposed=False).product(
                tf.zeros([2, 3]), AfterProduct(tf.zeros([3]))
            ),
            "the bias",
        ),
        (
            lambda ops: pack(ops, tf.zeros([3, 4]), transposed=False).product(
                tf.zeros([2, 3]), AfterProduct(residual=tf.zeros([4, 2]))
            ),
            "a residual connection",
        ),
        (lambda ops: ops.rtf_pack_matrix(w=tf.zeros([3]), transposed=False), "not a matrix"),
        (lambda ops: ops.rtf_once_sums(weights=tf.zeros([3, 2, 5]), values=tf.zeros([2, 5, 2, 7])), "does not fit"),
    ],
)
def test_wrong_input(ops, run, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        run(ops)
    assert text in str(info.value)
