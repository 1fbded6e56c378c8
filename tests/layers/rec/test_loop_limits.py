"""Loops that end by themselves, far below or beyond the number of steps that arrays are reserved for."""

from __future__ import annotations

import numpy as np
import pytest

import returnn_tf


@pytest.mark.parametrize(
    "steps,limit",
    [
        *((3, limit) for limit in (50, 20_000, 2**31 - 1)),
        (10_050, 50),
        pytest.param(10_050, 20_000, marks=pytest.mark.long),
        pytest.param(10_050, 2**31 - 1, marks=pytest.mark.slow),
    ],
)
def test_end_far_from_the_limit(limit: int, steps: int) -> None:
    """A limit takes no memory: the loop has as many steps as its end says, values and gradients for each of them."""
    count = min(limit, steps)
    unit = {
        "i": {"class": "combine", "kind": "add", "from": ["prev:i", "one"], "initial_output": 0},
        "one": {"class": "constant", "value": 1, "shape": (), "dtype": "int32"},
        "steps": {"class": "constant", "value": steps, "shape": (), "dtype": "int32"},
        "end": {"class": "compare", "kind": "greater_equal", "from": ["i", "steps"]},
        "sum": {"class": "combine", "kind": "add", "from": ["prev:sum", "base:x"]},
        "output": {"class": "copy", "from": "sum"},
    }
    network = {
        "x": {"class": "linear", "activation": None, "with_bias": False, "n_out": 1, "from": "data"},
        "loop": {"class": "rec", "from": [], "unit": unit, "max_seq_len": limit, "include_eos": True},
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "loop"},
        "output": {"class": "copy", "from": "mean", "loss": "as_is"},
    }
    config = returnn_tf.Config({
        "extern_data": {"data": {"shape": (1,), "time_dim_axis": None}}, "network": network, "behavior_version": 21,
    })  # fmt: skip
    net = returnn_tf.Network.from_config(config, train=True)
    net.set_param_values({"x/W": np.full([1, 1], 0.5, "float32")})
    done = net.run({"data": np.array([[1.0], [3.0]], "float32")}, fetch=["loop"], with_grad=True)
    numbers = np.arange(1, count + 1)
    np.testing.assert_allclose(done.layers["loop"].value[:, :, 0], [0.5 * numbers, 1.5 * numbers])
    np.testing.assert_allclose(done.grads["x/W"], [[(1 + 3) * numbers.mean()]], rtol=1e-4)  # "as_is" is a sum
