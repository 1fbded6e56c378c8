"""The units mingru and minlstm against the equations of their paper, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.util.lazy_tf import tf

IN, N, LENGTHS = 3, 4, [5, 2, 0]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def candidate(x: Any, opts: Any) -> Any:
    return np.where(x >= 0, x + 0.5, sigmoid(x)) if opts.get("positive") else x


def mingru(z: Any, h: Any, opts: Any) -> Any:
    u, c = np.split(z, 2)
    return (1 - sigmoid(u)) * h + sigmoid(u) * candidate(c, opts)


def minlstm(z: Any, h: Any, opts: Any) -> Any:
    f, i, c = np.split(z, 3)
    total = sigmoid(f) + sigmoid(i)
    return sigmoid(f) / total * h + sigmoid(i) / total * candidate(c, opts)


STEPS = {"mingru": mingru, "minlstm": minlstm}


@pytest.mark.parametrize("unit,opts", [(unit, opts) for unit in STEPS for opts in ({}, {"positive": True})], ids=str)
@pytest.mark.parametrize("direction", [1, -1])
def test_as_in_numpy(unit: str, opts: dict[str, Any], direction: int) -> None:
    rng = np.random.RandomState(1)
    cell = unit_class(unit)(N, IN, unit_opts=opts)
    params = {spec.name: rng.normal(size=spec.shape) for spec in cell.param_specs()}
    x, h0 = rng.normal(size=(5, 3, IN)), rng.normal(size=(3, N))
    out, (last,) = run_cell(
        cell, params, tf.constant(x), tf.constant(LENGTHS), initial_state=(tf.constant(h0),), direction=direction
    )
    for b, length in enumerate(LENGTHS):
        h = h0[b]
        for t in range(length)[::direction]:
            h = STEPS[unit](x[t, b] @ params["W"] + params["b"], h, opts)
            np.testing.assert_allclose(out[t, b], h, atol=1e-9)
        np.testing.assert_allclose(last[b], h, atol=1e-9)
        assert not out[length:, b].numpy().any()


@pytest.mark.parametrize("unit,width", [("mingru", 2), ("minlstm", 3)])
def test_projected_input(unit: str, width: int) -> None:
    cell = unit_class(unit)(N, width * N, input_projection=False)
    assert cell.param_specs() == []
    x = tf.constant(np.random.RandomState(1).normal(size=(5, 3, width * N)))
    out, _ = run_cell(cell, {}, x, tf.constant(LENGTHS))
    h = STEPS[unit](x[0, 0].numpy(), np.zeros(N), {})
    np.testing.assert_allclose(out[0, 0], h, atol=1e-9)


def test_gates_at_their_limits() -> None:
    """The quotient of two gates near 0 is finite, as is its gradient."""
    cell = unit_class("minlstm")(1, 3, input_projection=False)
    z = tf.constant([[-200.0, -199.0, 1.0]])
    with tf.GradientTape() as tape:
        tape.watch(z)
        h, _ = cell.step([], z, (tf.zeros([1, 1]),), None)
    np.testing.assert_allclose(h, [[sigmoid(1.0)]], rtol=1e-6)
    assert np.isfinite(tape.gradient(h, z)).all()


@pytest.mark.parametrize(
    "unit,kwargs,message",
    [
        ("mingru", {"unit_opts": {"postive": True}}, "unknown option 'postive'. Did you mean 'positive'"),
        ("minlstm", {"input_projection": False}, r"needs a dense input of dim 12 \(3 \* n_out\), but the input has"),
        ("mingruu", {}, "unknown unit 'mingruu'. Did you mean 'mingru'"),
    ],
)
def test_errors(unit: str, kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unit_class(unit, where="net/rec")(N, IN, where="net/rec", **kwargs)
