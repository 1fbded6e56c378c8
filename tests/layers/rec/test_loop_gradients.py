"""Gradients of loops: computed step by step again (checkpoint_steps), or not at all (back_prop)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config

_UNIT: dict[str, Any] = {
    "query": {"class": "linear", "activation": None, "with_bias": False, "n_out": 4, "from": "prev:cell"},
    "energy_in": {"class": "combine", "kind": "add", "from": ["base:enc", "query"]},
    "energy": {"class": "linear", "activation": "tanh", "n_out": 1, "from": "energy_in"},
    "weights": {"class": "softmax_over_spatial", "from": "energy"},
    "att": {"class": "generic_attention", "weights": "weights", "base": "base:enc"},
    "cell": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 3, "from": ["data:source", "prev:output", "att"]},
    # The gradient of swish is a `tf.custom_gradient`.
    "output": {"class": "linear", "activation": "swish", "n_out": 2, "from": "cell", "dropout": 0.2},
}

_NESTED: dict[str, Any] = {
    "x": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source", "prev:output"]},
    "inner": {"class": "rec", "from": "base:enc", "unit": {
        "both": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["data:source", "base:x"]},
        "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["both", "prev:output"]},
    }},
    "sum": {"class": "reduce", "mode": "sum", "axes": "T", "from": "inner"},
    "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": "sum"},
}  # fmt: skip


@functools.cache
def _plain(moved: bool = True) -> Any:
    """Return the results of a loop with attention and no options."""
    return _run(_UNIT, optimize_move_layers_out=moved)


def _run(unit: dict[str, Any], **options: Any) -> Any:
    network = {
        "enc": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data:other"},
        "loop": {"class": "rec", "from": "data", "unit": unit, **options},
        "output": {
            "class": "linear",
            "activation": None,
            "n_out": 2,
            "from": "loop",
            "loss": "mse",
            "target": "classes",
        },
    }
    config = Config({
        "extern_data": {"data": {"dim": 2}, "other": {"dim": 3}, "classes": {"dim": 2}},
        "network": network, "behavior_version": 21,
    })  # fmt: skip
    net = Network.from_config(config, train=True)
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(size=p.shape).astype("float32") for name, p in net.params.items()})
    lens = np.array([4, 2], "int32")
    feed = {
        "data": rng.normal(size=(2, 4, 2)).astype("float32"), "data/size0": lens,
        "other": rng.normal(size=(2, 3, 3)).astype("float32"), "other/size0": np.array([3, 2], "int32"),
        "classes": rng.normal(size=(2, 4, 2)).astype("float32"), "classes/size0": lens,
    }  # fmt: skip
    return net.run(feed, with_grad=True)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("unit", [_UNIT, _NESTED], ids=["attention", "nested loop"])
@pytest.mark.parametrize("moved", [True, False])
def test_checkpoint_steps_changes_nothing(unit: dict[str, Any], moved: bool) -> None:
    """The same loss and gradients, also with dropout, where each step draws the same numbers again."""
    plain = _plain(moved) if unit is _UNIT else _run(unit, optimize_move_layers_out=moved)
    again = _run(unit, optimize_move_layers_out=moved, checkpoint_steps=True)
    assert plain.total_loss == pytest.approx(again.total_loss, rel=1e-6)
    assert set(plain.grads) == set(again.grads)
    for name, grad in plain.grads.items():
        np.testing.assert_allclose(again.grads[name], grad, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_swap_memory_is_accepted() -> None:
    """It changes no number."""
    plain, swapped = _plain(), _run(_UNIT, swap_memory=True)
    assert plain.total_loss == swapped.total_loss


@pytest.mark.slow
def test_back_prop_false_stops_at_the_loop() -> None:
    """Only the layers after the loop get gradients."""
    plain, stopped = _plain(), _run(_UNIT, back_prop=False)
    assert plain.total_loss == stopped.total_loss
    assert "loop/rec/cell/rec/lstm_cell/kernel" in plain.grads
    assert set(stopped.grads) == {"output/W", "output/b"}
    np.testing.assert_allclose(stopped.grads["output/W"], plain.grads["output/W"], rtol=1e-5)
