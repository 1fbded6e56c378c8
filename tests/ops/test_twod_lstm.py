"""The 2D LSTM against loops in numpy, over ragged grids, and its gradients against differences."""

import numpy as np
import pytest

from returnn_tf.native import mdlstm_ops, native_mdlstm, portable_ops
from returnn_tf.ops.dense import twod_lstm
from returnn_tf.util.lazy_tf import tf

BATCH, N = 3, 2


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def case(source, target, seed=5):
    rng = np.random.default_rng(seed)
    arrays = [
        rng.normal(size=shape).astype("float32")
        for shape in ((source, BATCH, 5 * N), (target, BATCH, 5 * N), (N, 5 * N), (N, 5 * N))
    ]
    lens = np.array([source, source // 2, min(source, 1)], "int32")
    return arrays, lens


def expected(arrays, lens, pooling):
    z_source, z_target, left, up = arrays
    h = np.zeros([len(z_target) + 1, len(z_source) + 1, BATCH, N])
    c = np.zeros_like(h)
    for i in range(len(z_target)):
        for j in range(len(z_source)):
            z = z_source[j] + z_target[i] + h[i + 1, j] @ left + h[i, j + 1] @ up
            gate_i, gate_f, mix, gate_o, a = np.split(z, 5, axis=1)
            old = sigmoid(mix) * c[i + 1, j] + (1 - sigmoid(mix)) * c[i, j + 1]
            c[i + 1, j + 1] = sigmoid(gate_f) * old + sigmoid(gate_i) * np.tanh(a)
            h[i + 1, j + 1] = sigmoid(gate_o) * np.tanh(c[i + 1, j + 1])
    result = np.zeros([len(z_target), BATCH, N])
    pool = {"last": lambda x: x[:, -1], "max": lambda x: x.max(1), "mean": lambda x: x.mean(1)}[pooling]
    for b, length in enumerate(lens):
        if length:
            result[:, b] = pool(h[1:, 1 : length + 1, b])
    return result


def grid(arrays, lens, pooling):
    z_source, z_target, left, up = arrays
    with portable_ops():
        return twod_lstm.pooled_grid(z_source, z_target, lens, twod_lstm.TwoDLstmWeights(left, up), pooling)


def by_rows(arrays, lens, pooling):
    z_source, z_target, left, up = arrays
    h = c = tf.zeros([tf.shape(z_source)[0], BATCH, N])
    rows = []
    for i in range(z_target.shape[0]):
        h, c = twod_lstm.row(z_source, z_target[i], h, c, twod_lstm.TwoDLstmWeights(left, up))
        rows.append(twod_lstm.pooled_row(h, lens, pooling))
    return tf.stack(rows)


@pytest.mark.parametrize("pooling", ["last", "max", "mean"])
@pytest.mark.parametrize("source,target", [(5, 3), (2, 4), (1, 1)])
def test_grid_and_rows_against_numpy(source, target, pooling):
    arrays, lens = case(source, target)
    tensors = [tf.constant(a) for a in arrays]
    np.testing.assert_allclose(grid(tensors, lens, pooling), expected(arrays, lens, pooling), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_rows(tensors, lens, pooling), expected(arrays, lens, pooling), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("source,target", [(0, 3), (3, 0)])
def test_empty_grid(source, target):
    arrays, lens = case(source, target)
    got = tf.function(lambda: grid([tf.constant(a) for a in arrays], tf.constant(lens), "max"))()
    np.testing.assert_array_equal(got, np.zeros([target, BATCH, N]))


@pytest.mark.parametrize("pooling", ["last", "max", "mean"])
def test_gradients(pooling):
    arrays, lens = case(4, 3)
    weights = np.random.default_rng(1).normal(size=(3, BATCH, N)).astype("float32")
    variables = [tf.Variable(a) for a in arrays]
    grads = []
    for func in (grid, by_rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(func([tf.convert_to_tensor(v) for v in variables], lens, pooling) * weights)
        grads.append(tape.gradient(loss, variables))
    for k, array in enumerate(arrays):
        np.testing.assert_allclose(grads[0][k], grads[1][k], rtol=1e-4, atol=1e-5)
        for index in [(0,) * array.ndim, tuple(s - 1 for s in array.shape), tuple(s // 2 for s in array.shape)]:
            sides = []
            for change in (1e-4, -1e-4):
                moved = [a.astype("float64") for a in arrays]
                moved[k][index] += change
                sides.append((expected(moved, lens, pooling) * weights).sum())
            assert abs((sides[0] - sides[1]) / 2e-4 - grads[0][k].numpy()[index]) < 1e-3, (k, index)


@pytest.mark.parametrize("pooling", ["last", "max", "mean"])
@pytest.mark.parametrize("source,target", [(5, 3), (1, 4), (0, 3), (3, 0)])
def test_as_an_image(source, target, pooling):
    """The same grid by the form of the MDLSTM that has a native op."""
    arrays, lens = case(source, target)
    z_source, z_target, left, up = (tf.constant(a) for a in arrays)
    ops = mdlstm_ops()
    assert ops is not None
    z = twod_lstm.whole_grid(z_source, z_target)
    (h,) = native_mdlstm(ops, [z], [left], [up], tf.fill([BATCH], target), tf.constant(lens), [(False, False)])
    got = twod_lstm.pooled_image(h, tf.constant(lens), pooling)
    np.testing.assert_allclose(got, expected(arrays, lens, pooling), rtol=1e-5, atol=1e-6)
