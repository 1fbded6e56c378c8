"""Fused bias, activation, dropout and residual connection: the same as the ops one by one, in every combination."""

import numpy as np
import pytest

from returnn_tf.native.fused.activate import FUNCTIONS, Dropout, activate_ops, native_activate, native_gate
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops import after_product
from returnn_tf.ops.activations import get_activation
from returnn_tf.util.lazy_tf import tf

SEED = tf.constant([3, 2**41 + 7], tf.int64)


@pytest.fixture(scope="module")
def ops():
    found = activate_ops()
    assert found is not None, "the native op has to compile where the tests run"
    return found


def run(function, *arrays):
    """Return results, gradients, and types of the ops that were run, of a function in a graph of its own."""

    def step(*inputs):
        y = function(*inputs)
        weights = tf.reshape(tf.sin(tf.cast(tf.range(tf.size(y)), tf.float32)), tf.shape(y))
        return [y, *tf.gradients(y, inputs, grad_ys=weights)]

    graph = tf.function(step, autograph=False).get_concrete_function(
        *[tf.TensorSpec([None] * (a.ndim - 1) + [a.shape[-1]]) for a in arrays]
    )
    found = [y.numpy() for y in graph(*map(tf.constant, arrays))]
    return found, sorted(op.type for op in graph.graph.get_operations() if op.type.startswith("Rtf"))


def block(activation, first, second):
    """A product's bias and activation, dropout and residual connection; shapes of masks, or None for each entry."""

    def step(x, bias, residual):
        y = after_product.bias_and_activation(x, bias, activation)
        y = after_product.dropout(y, 0.3, SEED, first)
        y = after_product.bias_and_activation(y, bias, None)
        return after_product.add(residual, after_product.dropout(y, 0.2, SEED + 1, second))

    return step


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("masks", [(None, None), ([1, 1, 130], [1, 1, 130]), ([1, 1, 130], None)], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu", "swish", "tanh", "sigmoid", None, "softplus"], ids=str)
def test_fused_as_one_by_one(ops, activation, masks):
    rng = np.random.RandomState(1)
    arrays = [rng.normal(0, 1, shape).astype("float32") for shape in ((3, 5, 130), (130,), (3, 5, 130))]
    fused, types = run(block(activation, *masks), *arrays)
    with portable_ops():
        plain, none = run(block(activation, *masks), *arrays)
    assert not none and "RtfActivate" in types
    for a, b in zip(fused, plain):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_only_where_it_pays(ops, monkeypatch):
    """The trial is asked with the width; on a GPU it may say that TensorFlow's ops are faster."""
    asked = []
    monkeypatch.setattr(after_product, "pays", lambda trial, width, dtype: asked.append((trial.name, width)))
    arrays = [np.ones(shape, "float32") for shape in ((3, 5, 130), (130,), (3, 5, 130))]
    _, types = run(block("relu", None, [1, 1, 130]), *arrays)
    _, of_gate = run(lambda x: after_product.gated(x, 2, None, "sigmoid", train=True), arrays[0])
    assert types == of_gate == []
    assert set(asked) == {("activation and dropout", 130), ("gated units", 130)}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (7, 3), (1000, 67)], ids=str)
def test_sizes(ops, shape):
    """Without rows, too, whose arrays have no memory in a graph; then the gradient of the bias is 0."""

    @tf.function(autograph=False)
    def run(x, bias):
        y = native_activate(ops, x, function="relu", bias=bias, dropout=Dropout(0.5, SEED))
        return [y, *tf.gradients(y, [x, bias])]

    x = tf.random.stateless_normal(shape, SEED)
    y, dx, dbias = run(x, tf.ones(shape[1]))
    keep = 2 * tf.cast(tf.random.stateless_uniform(shape, SEED) >= 0.5, tf.float32)
    slopes = keep * tf.cast(x > -1, tf.float32)
    np.testing.assert_array_equal(y, tf.nn.relu(x + 1) * keep)
    np.testing.assert_array_equal(dx, slopes)
    np.testing.assert_array_equal(dbias, tf.reduce_sum(slopes, axis=0))


#: NaN, infinity, and numbers whose exponential functions over- or underflow.
EXTREME = [float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e30, -1e30, 100.0, -100.0, 89.0, -89.0, 0.0, 1.0]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS.values())))
def test_extreme_numbers_as_in_tensorflow(ops, name):
    """Where TensorFlow's form gives NaN, so does the op. Gradients of gates are products that overflow elsewhere."""
    x = tf.constant(np.tile(np.array(EXTREME, "float32"), [len(EXTREME), 1]))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        native, plain = native_activate(ops, x, function=name), get_activation(name)(x)
    gates = tf.transpose(x)
    for found, expected in (
        (native, plain),
        (tape.gradient(native, x), tape.gradient(plain, x)),
        (native_gate(ops, tf.concat([x, gates], axis=-1), name, "sigmoid"), plain * tf.sigmoid(gates)),
        (native_gate(ops, tf.concat([gates, x], axis=-1), "identity", name), gates * plain),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("function", ["relu", "gelu", "swish", "tanh", "sigmoid"])
def test_gradient_of_the_gradient(ops, function):
    x = tf.constant(np.random.RandomState(1).normal(0, 1, (4, 6)).astype("float32"))
    bias = tf.linspace(-1.0, 1.0, 6)

    def second(op):
        with tf.GradientTape() as outer:
            outer.watch([x, bias])
            with tf.GradientTape() as inner:
                inner.watch([x, bias])
                y = tf.reduce_sum(tf.sin(op(x, bias)))
            norm = tf.add_n([tf.reduce_sum(g * g) for g in inner.gradient(y, [x, bias])])
        return outer.gradient(norm, [x, bias])

    def native(x, bias):
        y = native_activate(ops, x, function=function, bias=bias)
        return y + tf.tile(native_gate(ops, y, function, "sigmoid"), [1, 2])

    def plain(x, bias):
        names = {"relu": tf.nn.relu, "gelu": tf.nn.gelu, "swish": tf.nn.silu, "tanh": tf.tanh, "sigmoid": tf.sigmoid}
        y = names[function](x + bias)
        a, b = tf.split(y, 2, axis=-1)
        return y + tf.tile(names[function](a) * tf.sigmoid(b), [1, 2])

    for a, b in zip(second(native), second(plain)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda ops: native_activate(ops, tf.zeros([2, 3]), bias=tf.zeros([2])), "bias has to be [3], but is [2]"),
        (lambda ops: native_activate(ops, tf.zeros([2, 3]), residual=tf.zeros([3])), "residual has to be [2,3]"),
        (lambda ops: native_gate(ops, tf.zeros([2, 3]), "tanh", "sigmoid"), "even number of units, but is [2,3]"),
    ],
)
def test_wrong_input(ops, call, text):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        call(ops)
    assert text in str(info.value)
