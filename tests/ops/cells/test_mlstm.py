"""mLSTM against numpy, without its stabiliser."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.util.lazy_tf import tf
from tests.ops.cells.frame_by_frame import check_unit, sigmoid

N, HEADS = 6, 2


@pytest.mark.parametrize("forget_gate,direction", [("sigmoid", 1), ("exp", -1)])
def test_as_in_numpy(forget_gate, direction):
    def formula(p, x, state):
        q, k, v, o = (x @ p["W"] + p["b"]).reshape(4, HEADS, -1)
        i, f = (x @ p["W_gates"] + p["b_gates"]).reshape(2, HEADS)
        f = np.exp(f) if forget_gate == "exp" else sigmoid(f)
        c, n, m = state[0].reshape(HEADS, 3, 3), state[1].reshape(HEADS, 3), state[2]
        m_new = np.maximum(np.log(f) + m, i)
        # The memory itself, and its copy that is small by exp(-m).
        kept, added = (f * np.exp(m))[:, None], np.exp(i)[:, None] * k / np.sqrt(3)
        c = kept[:, :, None] * c + added[:, :, None] * v[:, None]
        n = kept * n + added
        h = np.einsum("hk,hkv->hv", q, c) / np.maximum(np.abs((q * n).sum(1)), 1)[:, None]
        scale = np.exp(-m_new)[:, None]
        return (sigmoid(o) * h).reshape(-1), [c * scale[:, :, None], n * scale, m_new]

    check_unit("mlstm", {"num_heads": HEADS, "forget_gate": forget_gate, "chunk": 8}, formula, n=N, direction=direction)


def test_gates_beyond_the_range_of_float():
    """Outputs and gradients are finite where exp(i) is not, and where all is forgotten."""
    cell = unit_class("mlstm")(N, 3, unit_opts={"num_heads": HEADS, "forget_gate": "exp", "chunk": 8})
    rng = np.random.RandomState(1)
    params = {spec.name: tf.constant(rng.normal(size=spec.shape), tf.float32) for spec in cell.param_specs()}
    params["W_gates"] *= 300.0
    x = tf.constant(rng.normal(size=(20, 3, 3)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(params)
        outputs, state = run_cell(cell, params, x, tf.constant([20, 9, 0]))
        score = tf.reduce_sum(outputs)
    gradients = tape.gradient(score, params)
    assert all(np.isfinite(value).all() for value in [outputs, *state, *gradients.values()])
    assert np.abs(outputs).max() > 0.1


def test_initial_values():
    cell = unit_class("mlstm")(8, 3)
    biases = {spec.name: spec for spec in cell.param_specs()}["b_gates"].default((8,), np.random.default_rng(1))
    np.testing.assert_allclose(biases[4:], [3, 4, 5, 6])
    assert 0 < np.abs(biases[:4]).max() < 0.5


def test_wrong_options():
    with pytest.raises(ConfigError, match=r"here: unit 'mlstm': n_out 10 is not divisible by num_heads 4"):
        unit_class("mlstm")(10, 3, where="here")
