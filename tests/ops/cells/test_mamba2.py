"""Mamba-2 against numpy."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.cells import unit_class
from tests.ops.cells.frame_by_frame import check_unit, silu

WIDTH, HEADS, STATE, CONV = 12, 4, 5, 3


@pytest.mark.parametrize("groups,direction", [(1, 1), (2, -1)])
def test_as_in_numpy(groups, direction):
    def formula(p, x, state):
        gate, u, dt = np.split(x @ p["in_proj"], [WIDTH, 2 * WIDTH + 2 * groups * STATE])
        frames = np.concatenate([state[0].reshape(CONV - 1, -1), u[None]])
        parts = silu((frames * p["conv/W"]).sum(0) + p["conv/b"])
        x, b, c = np.split(parts, [WIDTH, WIDTH + groups * STATE])
        x, dt = x.reshape(HEADS, -1), np.log1p(np.exp(dt + p["dt_bias"]))
        s = state[1].reshape(HEADS, STATE, -1)
        y = np.zeros_like(x)
        new = np.zeros_like(s)
        for h in range(HEADS):
            group = h * groups // HEADS
            keys, queries = (part.reshape(groups, STATE)[group] for part in (b, c))
            decay = np.exp(-np.exp(p["A_log"][h]) * dt[h])
            new[h] = decay * s[h] + dt[h] * np.outer(keys, x[h])
            y[h] = queries @ new[h] + p["D"][h] * x[h]
        y = (y.reshape(-1) * silu(gate)).reshape(groups, -1)
        y = y / np.sqrt((y * y).mean(1, keepdims=True) + 1e-5)
        return (y.reshape(-1) * p["norm/scale"]) @ p["out_proj"], [frames[1:], new]

    opts = {"headdim": 3, "d_state": STATE, "d_conv": CONV, "ngroups": groups, "chunk": 8}
    check_unit("mamba2", opts, formula, n=6, direction=direction)


def test_initial_values():
    specs = {spec.name: spec for spec in unit_class("mamba2")(64, 3).param_specs()}
    rng = np.random.default_rng(1)
    rates = np.exp(specs["A_log"].default((1000,), rng))
    assert 1 <= rates.min() < 1.2 and 15.8 < rates.max() <= 16
    steps = np.log1p(np.exp(specs["dt_bias"].default((1000,), rng)))
    assert 0.001 <= steps.min() < 0.0011 and 0.09 < steps.max() <= 0.1
    assert abs(np.median(steps) - 0.01) < 0.002


@pytest.mark.parametrize(
    "n,opts,message",
    [
        (24, {}, r"here: unit 'mamba2': expand \* n_out = 48 is not divisible by headdim 64.*headdim 48"),
        (96, {"ngroups": 2}, r"the 3 heads \(expand \* n_out / headdim\) cannot be divided into ngroups 2"),
        (64, {"d_conv": 1}, "d_conv.*must be at least 2"),
    ],
)
def test_wrong_options(n, opts, message):
    with pytest.raises(ConfigError, match=message):
        unit_class("mamba2")(n, 3, unit_opts=opts, where="here")
