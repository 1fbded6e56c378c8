"""sLSTM against numpy, without its stabiliser."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.util.lazy_tf import tf
from tests.ops.cells.frame_by_frame import check_unit, sigmoid

N = 6


@pytest.mark.parametrize("num_heads,forget_gate,direction", [(1, "sigmoid", 1), (2, "exp", -1), (6, "sigmoid", 1)])
def test_as_in_numpy(num_heads: int, forget_gate: str, direction: int) -> None:
    def formula(p, x, state):  # type: ignore[no-untyped-def]
        c, n, m, h = state
        recurrent = np.einsum("hd,hdgk->ghk", h.reshape(num_heads, -1), p["W_re"].reshape(num_heads, -1, 4, d))
        i, f, z, o = (x @ p["W"] + p["b"]).reshape(4, N) + recurrent.reshape(4, N)
        gate = np.exp(f) if forget_gate == "exp" else sigmoid(f)
        # The sums themselves, and their copies that are small by exp(-m).
        c = gate * c * np.exp(m) + np.exp(i) * np.tanh(z)
        n = gate * n * np.exp(m) + np.exp(i)
        m = np.maximum(np.log(gate) + m, i)
        h = sigmoid(o) * c / n
        return h, [c * np.exp(-m), n * np.exp(-m), m, h]

    def states(rng, shape):  # type: ignore[no-untyped-def]
        return rng.uniform(0.5, 1.5, shape)

    d, opts = N // num_heads, {"num_heads": num_heads, "forget_gate": forget_gate}
    check_unit("slstm", opts, formula, n=N, direction=direction, parallel=False, states=states)


def test_gates_beyond_the_range_of_float() -> None:
    """Outputs and gradients are finite where exp(i) is not, and where no input gate is open."""
    cell = unit_class("slstm")(N, 3, unit_opts={"num_heads": 2, "forget_gate": "exp"})
    rng = np.random.RandomState(1)
    params = {spec.name: tf.constant(rng.normal(size=spec.shape), tf.float32) for spec in cell.param_specs()}
    params["W"] *= 100.0
    x = tf.constant(rng.normal(size=(20, 3, 3)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(params)
        outputs, state = run_cell(cell, params, x, tf.constant([20, 9, 0]))
        score = tf.reduce_sum(outputs)
    gradients = tape.gradient(score, params)
    assert all(np.isfinite(value).all() for value in [outputs, *state, *gradients.values()])
    assert np.abs(outputs).max() > 0.1


def test_initial_values() -> None:
    specs = {spec.name: spec for spec in unit_class("slstm")(4, 3, unit_opts={"num_heads": 2}).param_specs()}
    assert {name: spec.shape for name, spec in specs.items()} == {"W": (3, 16), "W_re": (2, 2, 8), "b": (16,)}
    np.testing.assert_allclose(specs["b"].default, [0] * 4 + [3, 6, 3, 6] + [0] * 8)
    drawn = specs["W_re"].default((2, 50, 200), np.random.default_rng(1))  # type: ignore[operator, misc]
    assert 0.95 < np.abs(drawn).max() / np.sqrt(6 / 250) <= 1


def test_heads_must_divide() -> None:
    message = "net/rec: n_out 100 of unit 'slstm' is not divisible by num_heads 3. Set n_out to 102, or another num_"
    with pytest.raises(ConfigError, match=message):
        unit_class("slstm")(100, 3, unit_opts={"num_heads": 3}, where="net/rec")
