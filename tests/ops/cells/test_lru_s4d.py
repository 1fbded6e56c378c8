"""The units lru and s4d against the equations of their papers, in numpy; their initial values and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.ops.initializers import get_initializer
from returnn_tf.util.lazy_tf import tf

IN, N_OUT, N_FRAMES, LENGTHS = 3, 4, 70, [70, 37, 0, 64, 1]


def lru(p: Any, x: Any, h: Any, opts: Any) -> Any:
    factor = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    h = factor * h + np.exp(p["gamma_log"]) * (x @ (p["B_re"] + 1j * p["B_im"]))
    return (h @ (p["C_re"] + 1j * p["C_im"])).real + x @ p["D"], h


def s4d(p: Any, x: Any, h: Any, opts: Any) -> Any:
    u = x @ p["W"] + p["b"]
    a, step = -np.exp(p["A_log_re"]) + 1j * p["A_im"], np.exp(p["log_step"])
    if opts.get("discretization") == "bilinear":
        factor, weight = (1 + step * a / 2) / (1 - step * a / 2), step / (1 - step * a / 2)
    else:
        factor, weight = np.exp(step * a), (np.exp(step * a) - 1) / a
    h = factor * h.reshape(a.shape) + u
    return 2 * (weight * (p["C_re"] + 1j * p["C_im"]) * h).sum(0).real + p["D"] * u, h.ravel()


CASES = [
    (lru, {"d_state": 5}),
    (lru, {}),
    (s4d, {"d_state": 6}),
    (s4d, {"d_state": 6, "discretization": "bilinear", "init": "inv"}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("formula,opts", CASES, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_in_numpy(formula: Any, opts: dict[str, Any], direction: int, dtype: str) -> None:
    """Over more frames than a chunk of s4d; sequences end within chunks and between them."""
    rng = np.random.RandomState(1)
    cell = unit_class(formula.__name__)(N_OUT, IN, unit_opts=opts)
    params = initial(cell, rng)
    x = rng.normal(size=(N_FRAMES, len(LENGTHS), IN))
    h0 = rng.normal(size=(2, len(LENGTHS), cell.state_sizes()[0]))
    out, last = run_cell(
        cell, {name: tf.constant(value, dtype) for name, value in params.items()}, tf.constant(x, dtype),
        tf.constant(LENGTHS), initial_state=tuple(tf.constant(part, dtype) for part in h0), direction=direction,
    )  # fmt: skip
    limit = {"atol": 1e-9} if dtype == "float64" else {"atol": 5e-5, "rtol": 1e-4}
    for b, length in enumerate(LENGTHS):
        h = h0[0, b] + 1j * h0[1, b]
        for t in range(length)[::direction]:
            y, h = formula(params, x[t, b], h, opts)
            np.testing.assert_allclose(out[t, b], y, **limit)
        np.testing.assert_allclose(last[0][b], h.real, **limit)
        np.testing.assert_allclose(last[1][b], h.imag, **limit)
        assert not out[length:, b].numpy().any()


def initial(cell: Any, rng: Any) -> Any:
    return {
        spec.name: get_initializer("random_normal" if spec.default is None else spec.default)(spec.shape, rng)
        for spec in cell.param_specs()
    }


def test_ring() -> None:
    """The initial states of lru decay at rates between the radii, and their variance does not depend on the rate."""
    cell = unit_class("lru")(200, IN, unit_opts={"r_min": 0.5, "r_max": 0.9, "max_phase": 0.3})
    start = initial(cell, np.random.default_rng(1))
    radii, phases = np.exp(-np.exp(start["nu_log"])), np.exp(start["theta_log"])
    assert 0.5 < radii.min() < 0.503 and 0.897 < radii.max() < 0.9 and phases.max() <= 0.3
    assert np.mean(radii**2) == pytest.approx((0.25 + 0.81) / 2)
    np.testing.assert_allclose(np.exp(2 * start["gamma_log"]), 1 - radii**2)


def test_initial_frequencies() -> None:
    lin, inv = (
        initial(unit_class("s4d")(2, IN, unit_opts={"d_state": 4, "init": init}), np.random.default_rng(1))
        for init in ("lin", "inv")
    )
    np.testing.assert_allclose(lin["A_im"][:, 1], [0, np.pi])
    np.testing.assert_allclose(inv["A_im"][:, 0], [4 / np.pi * 3, 4 / np.pi / 3])
    np.testing.assert_allclose(np.exp(lin["A_log_re"]), 0.5)
    assert 0.001 <= np.exp(lin["log_step"]).min() <= np.exp(lin["log_step"]).max() <= 0.1


@pytest.mark.parametrize(
    "unit,kwargs,message",
    [
        ("lru", {"unit_opts": {"r_min": 0.9, "r_max": 0.5}}, "net/rec: r_min 0.9 is not below r_max 0.5"),
        ("lru", {"unit_opts": {"r_max": 1.5}}, "'r_max'.*must be from 0 to 1"),
        ("lru", {"input_projection": False}, "no separate input projection"),
        ("s4d", {"unit_opts": {"d_state": 5}}, "'d_state'.*must be even and at least 2"),
        ("s4d", {"unit_opts": {"discretization": "euler"}}, "'discretization' is 'euler'. Known: zoh, bilinear"),
        ("s4d", {"unit_opts": {"dt_min": 0.5}}, "net/rec: dt_min 0.5 is above dt_max 0.1"),
        ("s4d", {"input_projection": False}, "needs a dense input of dim 4"),
    ],
)
def test_errors(unit: str, kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unit_class(unit)(N_OUT, IN, where="net/rec", **kwargs)
