"""Native parts of a search: against numpy, more steps than one allocation holds, ties, wrong shapes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from returnn_tf.native.after_product import AfterProduct
from returnn_tf.native.decoding.search import (
    in_large_pages,
    native_beam_attention,
    native_once_attention,
    pack,
    search_ops,
)
from returnn_tf.ops.dense.in_beam import product_in_beam
from returnn_tf.util.lazy_tf import tf


@pytest.fixture(scope="module")
def ops():
    found = search_ops()
    assert found is not None, "the native search has to compile where the tests run"
    return found


@pytest.mark.parametrize(
    "entries, heads, key, value", [(1, 1, 1, 1), (26, 2, 16, 5), (13, 3, 33, 32), (32, 3, 130, 71)]
)
def test_attention_in_a_loop(ops, entries, heads, key, value):
    """In a graph, where the op writes into the memory of the step before; hypotheses are reordered in each step."""
    rng = np.random.RandomState(1)
    steps = 37
    qkv = rng.normal(0, 1, (steps, entries, heads, 2 * key + value)).astype("float32")
    orders = rng.randint(0, entries, (steps, entries)).astype("int32")

    def body(t, keys, values, rows, written):
        x = tf.reshape(tf.gather(tf.constant(qkv), t), [entries, heads * (2 * key + value)])
        y, keys, values, rows = native_beam_attention(ops, x, keys, values, rows, heads=heads)
        return t + 1, keys, values, tf.gather(rows, tf.gather(tf.constant(orders), t)), written.write(t, y)

    @tf.function(autograph=False)
    def run():
        start = [tf.zeros([0, entries, heads * key]), tf.zeros([0, entries, heads * value])]
        start.append(tf.zeros([entries, 0], tf.int32))
        invariants = [tf.TensorShape([]), *(tf.TensorShape([None, None, x.shape[2]]) for x in start[:2])]
        invariants += [tf.TensorShape([None, None]), tf.TensorShape(None)]
        written = tf.TensorArray(tf.float32, steps)
        state = (tf.constant(0), *start, written)
        return tf.while_loop(lambda t, *_: t < steps, body, state, shape_invariants=tuple(invariants))[-1].stack()

    history = np.zeros((entries, 0, heads, key + value))
    for t, y in enumerate(run().numpy()):
        history = np.concatenate([history, qkv[t][:, None, :, key:]], axis=1)
        energies = np.einsum("ehd,eshd->esh", qkv[t][..., :key], history[..., :key]) / key**0.5
        weights = np.exp(energies - energies.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = np.einsum("esh,eshd->ehd", weights, history[..., key:])
        np.testing.assert_allclose(y, expected.reshape([entries, -1]), rtol=1e-5, atol=1e-5)
        history = history[orders[t]]


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


@pytest.mark.parametrize("size, value", [(17, 64), (64, 130), (1, 1)])
@pytest.mark.parametrize("beam, heads", [(1, 8), (2, 1), (5, 3), (12, 2)])
@pytest.mark.parametrize("lengths", [None, [7, 0, 4], "by hypothesis"])
def test_once_attention(ops, beam, heads, size, value, lengths):
    """Frames after the end of a sequence count neither for all of its hypotheses nor for each by itself."""
    rng = np.random.RandomState(1)
    queries = rng.normal(0, 1, (3 * beam, heads, size)).astype("float32")
    keys, values = (rng.normal(0, 1, (3, 7, heads, n)).astype("float32") for n in (size, value))
    lens = None if lengths is None else rng.randint(-1, 10, 3 * beam) if isinstance(lengths, str) else lengths
    lens = None if lens is None else np.repeat(lens, 3 * beam // len(lens)).astype("int32")
    keys[1, 5:] = 1e30 if lens is not None and not isinstance(lengths, str) else 1  # what is behind the end is not read
    given = None if lens is None else tf.constant(lens)
    found = native_once_attention(ops, *map(tf.constant, (queries, keys, values)), given, scale=0.3)
    energies = 0.3 * np.einsum("bhd,bshd->bhs", queries.astype("float64"), keys.repeat(beam, axis=0))
    energies[np.broadcast_to(np.arange(7) >= (7 if lens is None else lens[:, None, None]), energies.shape)] = -np.inf
    weights = np.exp(energies - np.maximum(energies.max(axis=2, keepdims=True), -1e30))
    weights /= np.maximum(weights.sum(axis=2, keepdims=True), 1e-30)
    np.testing.assert_allclose(found, np.einsum("bhs,bshd->bhd", weights, values.repeat(beam, axis=0)), 1e-5, 1e-5)


def test_once_attention_does_not_depend_on_others(ops):
    """A hypothesis gets the same bits in a beam of any size."""
    rng = np.random.RandomState(1)
    x = rng.normal(0, 1, (7, 2, 33)).astype("float32")
    keys, values = (tf.constant(rng.normal(0, 1, (1, 9, 2, n)), tf.float32) for n in (33, 70))
    alone = np.concatenate([native_once_attention(ops, x[i : i + 1], keys, values, None, scale=1) for i in range(7)])
    np.testing.assert_array_equal(native_once_attention(ops, x, keys, values, None, scale=1), alone)


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


ROWS = np.zeros((3, 1), "int32")
ROOM, NO_ROOM = np.zeros((1, 3, 4), "float32"), np.zeros((0, 3, 4), "float32")


@pytest.mark.parametrize(
    "units, keys, rows, text",
    [(6, ROOM, ROWS, "units"), (12, NO_ROOM, ROWS, "1 steps"), (12, ROOM, ROWS + 3, "0 ... 2")],
)
def test_wrong_attention(ops, units, keys, rows, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        native_beam_attention(ops, tf.zeros([3, units]), keys, keys, rows, heads=2)
    assert text in str(info.value)


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
        (
            lambda ops: native_once_attention(
                ops, *map(tf.zeros, ([3, 2, 5], [2, 7, 2, 5], [2, 7, 2, 4])), None, scale=1
            ),
            "do not fit",
        ),
        (
            lambda ops: native_once_attention(
                ops, *map(tf.zeros, ([4, 2, 5], [2, 7, 2, 5], [2, 7, 2, 4])), tf.zeros([2], tf.int32), scale=1
            ),
            "2 lengths for 4 rows",
        ),
        (lambda ops: ops.rtf_once_sums(weights=tf.zeros([3, 2, 5]), values=tf.zeros([2, 5, 2, 7])), "does not fit"),
    ],
)
def test_wrong_input(ops, run, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        run(ops)
    assert text in str(info.value)
