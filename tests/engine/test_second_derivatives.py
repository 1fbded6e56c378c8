"""Losses on gradients through ops with a native form: their gradients, and which forms are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.util.lazy_tf import tf

WIDTH = 128  # the least width of the native forms
STEP = 2e-3
FEED = {
    "data": np.random.RandomState(1).normal(size=(2, 5, 4)).astype("float32"),
    "data/size0": np.array([5, 3], "int32"),
    "classes": np.array([[1, 2], [3, 0]], "int32"),
    "classes/size0": np.array([2, 1], "int32"),
}
IN = {"class": "linear", "activation": None, "n_out": WIDTH, "from": "data"}
LSTM = {"y": {"class": "rec", "unit": "nativelstm2", "n_out": 16, "from": "x"}}
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "lstm": (LSTM, set()),
    "gru": ({"y": {"class": "rec", "unit": "gru", "n_out": 16, "from": "x"}}, set()),
    "slstm": ({"y": {"class": "rec", "unit": "slstm", "n_out": 16, "from": "x"}}, set()),
    "selective scan": ({"y": {"class": "rec", "unit": "mamba", "n_out": 16, "from": "x"}}, set()),
    "convolution with batch norm": (
        {
            "c": {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": WIDTH, "from": "x"},
            "y": {"class": "batch_norm", "masked_time": True, "from": "c"},
        },
        {"RtfBatchNorm"},
    ),
    "activation": ({"y": {"class": "linear", "activation": "swish", "n_out": WIDTH, "from": "x"}}, {"RtfActivate"}),
    "attention": (
        {"y": {"class": "self_attention", "num_heads": 2, "total_key_dim": WIDTH, "n_out": WIDTH, "from": "x"}},
        {"RtfAttention"},
    ),
}


def _config(layers: dict[str, Any], **settings: Any) -> Config:
    network = {"in": IN, "x": {"class": "copy", "from": "in"}, **layers}
    square = {"class": "eval", "eval": "source(0) ** 2", "from": "y", "loss": "as_is"}
    network.setdefault("output", square)
    data = {"data": {"dim": 4}, "classes": {"dim": 7, "sparse": True}}
    fixed = {"extern_data": data, "learning_rate": 1.0, "behavior_version": 21}
    return Config({**fixed, "network": network, **settings})


def _net(config: Config) -> Network:
    net = Network.from_config(config, train=True)
    rng = np.random.RandomState(2)
    moved = {name: value + rng.normal(0, 0.05, value.shape) for name, value in net.get_param_values().items()}
    net.set_param_values({k: v.astype("float32") for k, v in moved.items() if net.params[k].trainable})
    return net


def _native_ops(graph: Any) -> set[str]:
    graph_def = graph.as_graph_def()
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    return {node.op for node in nodes if node.op.startswith("Rtf") and node.op != "RtfUpdate"}


@pytest.mark.parametrize("case", CASES)
def test_tikhonov(case: str) -> None:
    """The second update of a step is what difference quotients of the reported loss are."""
    layers, _ = CASES[case]
    config = _config({**layers, "x": {"class": "tikhonov_regularization", "from": "in"}})
    net = _net(config)
    trainer, values = StepTrainer(net, config), net.get_param_values()
    first = net.run(FEED, with_grad=True).grads["in/W"]
    trainer.step(FEED)
    grad = values["in/W"] - net.get_param_values()["in/W"] - first
    step = STEP * grad / np.linalg.norm(grad)
    found = []
    for sign in (1, -1):
        net.set_param_values({**values, "in/W": values["in/W"] + sign * step})
        found.append(trainer.step(FEED).losses["x/tikhonov_reg"])
    np.testing.assert_allclose((found[0] - found[1]) / (2 * STEP), np.linalg.norm(grad), rtol=2e-2)


@pytest.mark.parametrize("case", ["lstm", "convolution with batch norm", "activation", "attention"])
def test_loss_on_the_layer_gradient(case: str) -> None:
    layers, expected = CASES[case]
    square = {"class": "eval", "eval": "source(0) ** 2"}
    net = _net(_config({
        **layers,
        "squares": {**square, "from": "y"},
        "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "squares"},
        "slope": {"class": "gradient", "y": "sum", "x": "x"},
        "output": {**square, "from": "slope", "loss": "as_is"},
    }))  # fmt: skip
    grad, values = net.run(FEED, with_grad=True).grads["in/W"], net.get_param_values()
    step = STEP * grad / np.linalg.norm(grad)
    found = []
    for sign in (1, -1):
        net.set_param_values({**values, "in/W": values["in/W"] + sign * step})
        found.append(net.run(FEED).total_loss)
    np.testing.assert_allclose((found[0] - found[1]) / (2 * STEP), np.linalg.norm(grad), rtol=2e-2)
    graph = net.feed_function(lambda feed: net.lower(feed, train=True).losses).trace().graph
    assert _native_ops(graph) >= expected


@pytest.mark.parametrize("reads_slope", [False, True])
def test_native_forms_where_no_gradient_is_differentiated(reads_slope: bool) -> None:
    """Without losses, a derivative is an output like others."""
    slope = {
        "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "y"},
        "slope": {"class": "gradient", "y": "sum", "x": "x", "is_output_layer": True},
    }
    net = _net(_config({**LSTM, **(slope if reads_slope else {})}))
    for with_losses in (False, True):
        graph = net.feed_function(lambda feed: list(net.lower(feed, with_losses=with_losses).values.values())).trace()  # noqa: B023
        assert ("RtfLstm" in _native_ops(graph.graph)) == (not reads_slope or not with_losses)


def test_maximize_grad_norm() -> None:
    config = _config(LSTM, maximize_grad_norm=0.1)
    trainer = StepTrainer(_net(config), config)
    assert np.isfinite(trainer.step(FEED).total_loss)


def test_loss_without_second_derivative() -> None:
    config = _config({
        "x": {"class": "tikhonov_regularization", "from": "in"},
        "output": {"class": "softmax", "n_out": 8, "from": "x", "loss": "ctc", "target": "classes"},
    })  # fmt: skip
    with pytest.raises(ConfigError, match="no gradient, or no second one.*'ctc'.*Do without"):
        StepTrainer(_net(config), config).step(FEED)


def test_error_in_the_code_of_a_gradient() -> None:
    """It is not taken for a gradient that is missing."""

    def layer(source: Any, **_: Any) -> Any:
        @tf.custom_gradient
        def function(x: Any) -> Any:
            return tf.identity(x), lambda dy: dy * {}["scale"]

        return function(source(0))

    config = _config({
        "x": {"class": "eval", "from": "in", "eval": layer},
        "output": {"class": "softmax", "n_out": 8, "from": "x", "loss": "as_is"},
    })  # fmt: skip
    with pytest.raises(KeyError, match="scale"):
        StepTrainer(_net(config), config).step(FEED)
