"""Cells in loops whose input is known before the loop: one fused call over all steps, also in loops inside of loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.describe import describe_plan
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config

_CELL = {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 3}
#: name -> (layer of the cell, its unit)
_UNITS: dict[str, Any] = {
    "from the source": {
        "cell": {**_CELL, "from": "data:source"},
        "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["cell", "prev:output"]},
    },
    "in a nested loop": {
        "x": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:output"]},
        "inner": {"class": "rec", "from": "base:data", "unit": {
            "cell": {**_CELL, "from": "data:source"},
            "both": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["cell", "base:x"]},
            "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["both", "prev:output"]},
        }},
        "output": {"class": "reduce", "mode": "sum", "axes": "T", "from": "inner"},
    },
    "the same input in each step of a nested loop": {
        "x": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:output"]},
        "inner": {"class": "rec", "from": "base:data", "unit": {
            "cell": {**_CELL, "from": "base:x"},
            "both": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["cell", "data:source"]},
            "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["both", "prev:output"]},
        }},
        "output": {"class": "reduce", "mode": "sum", "axes": "T", "from": "inner"},
    },
}  # fmt: skip


def _net(unit: dict[str, Any], moved: bool) -> Network:
    unit = {
        name: {**layer, "optimize_move_layers_out": moved} if layer["class"] == "rec" else layer
        for name, layer in unit.items()
    }
    network = {
        "loop": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved},
        "output": {"class": "linear", "activation": None, "n_out": 2, "from": "loop", "loss": "mse"},
    }
    extern = {"data": {"dim": 2}, "classes": {"dim": 2}}
    return Network.from_config(Config({"extern_data": extern, "network": network, "behavior_version": 21}), train=True)


def _run(net: Network) -> Any:
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(size=p.shape).astype("float32") for name, p in sorted(net.params.items())})
    lens = np.array([4, 2], "int32")
    data = {key: rng.normal(size=(2, 4, 2)).astype("float32") for key in ("data", "classes")}
    return net.run({**data, "data/size0": lens, "classes/size0": lens}, with_grad=True)


@pytest.mark.slow
@pytest.mark.parametrize("unit", _UNITS.values(), ids=_UNITS)
def test_fused_cell_equals_that_in_the_loop(unit: dict[str, Any]) -> None:
    """The same loss and gradients both ways, and only one of them is fused."""
    fused, stepwise = _net(unit, True), _net(unit, False)
    assert "fused" in describe_plan(fused.plan)
    assert "fused" not in describe_plan(stepwise.plan)
    a, b = _run(fused), _run(stepwise)
    assert a.total_loss == pytest.approx(b.total_loss, rel=1e-5)
    assert set(a.grads) == set(b.grads)
    for name, grad in a.grads.items():
        np.testing.assert_allclose(b.grads[name], grad, rtol=1e-4, atol=1e-5, err_msg=name)
