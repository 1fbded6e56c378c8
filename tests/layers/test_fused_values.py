"""Layers whose ops are fused with those that follow them: their values stay what others see and differentiate by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.native.portable import portable_ops

WIDTH = 128


def results(layers: dict[str, Any]) -> Any:
    """Return losses, gradients and the value of the layer "output" in training, and the parameters after it."""
    config = Config({"behavior_version": 21, "extern_data": {"data": {"dim": WIDTH}}, "network": layers})
    net = Network.from_config(config, train=True)
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(0, 0.1, value.shape) for name, value in net.get_param_values().items()})
    feed = {"data": rng.normal(0, 1, (2, 3, WIDTH)).astype("float32"), "data/size0": np.array([3, 2], "int32")}
    return net.run(feed, with_grad=True), net.get_param_values()


def assert_as_one_by_one(layers: dict[str, Any]) -> None:
    fused, params = results(layers)
    with portable_ops():
        plain, plain_params = results(layers)
    for name, param in plain_params.items():
        np.testing.assert_allclose(params[name], param, rtol=1e-5, atol=1e-6, err_msg=name)
    assert set(fused.grads) == set(plain.grads)
    for name, grad in plain.grads.items():
        np.testing.assert_allclose(fused.grads[name], grad, rtol=1e-4, atol=1e-4 * abs(grad).max(), err_msg=name)
    value = plain.layers["output"].value
    assert np.abs(value).max() > 0
    np.testing.assert_allclose(fused.layers["output"].value, value, rtol=1e-4, atol=1e-5)


LINEAR = {"class": "linear", "n_out": WIDTH, "activation": None, "from": "data"}
DROPOUT = {"class": "dropout", "dropout": 0.3, "from": "a"}
CODE = "tf.gradients(source(0, auto_convert=False), source(1, auto_convert=False))[0]"


@pytest.mark.sampled
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize(
    "gradient",
    [
        {"class": "gradient", "y": "y", "x": "a"},
        {"class": "eval", "eval": CODE, "from": ["y", "a"], "out_type": {"shape": (None, WIDTH)}},
        {"class": "combine", "kind": "eval", "eval": CODE, "from": ["y", "a"]},
    ],
    ids=lambda layer: layer["class"],
)
def test_derivative_by_a_layer_before_dropout(gradient: dict[str, Any], activation: Any) -> None:
    layers = {
        "a": {**LINEAR, "activation": activation},
        "dropped": DROPOUT,
        "square": {"class": "eval", "eval": "source(0) ** 2", "from": "dropped"},
        "y": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "square"},
        "gradient": gradient,
        "output": {"class": "eval", "eval": "source(0) ** 2", "from": "gradient", "loss": "as_is"},
    }
    assert_as_one_by_one(layers)


def test_bias_of_users_along_another_axis() -> None:
    """Code of a config may add a bias along the second axis, which no fused op does."""
    bias = "tf.nn.bias_add(source(0), [1.0, 2.0, 3.0], data_format='NCW')"
    layers = {
        "a": {"class": "eval", "eval": bias, "from": "data"},
        "scaled": {**LINEAR, "from": "a"},
        "dropped": {**DROPOUT, "dropout_noise_shape": {"*": None}},
        "sum": {"class": "combine", "kind": "add", "from": ["a", "dropped"]},
        "output": {"class": "combine", "kind": "mul", "from": ["sum", "scaled"], "loss": "as_is"},
    }
    assert_as_one_by_one(layers)


NORM = {"class": "batch_norm", "masked_time": True, "from": "conv"}


@pytest.mark.parametrize(
    "conv, norm, read",
    [
        ({"use_time_mask": True}, {}, ["swish", "conv"]),
        ({"padding": "valid", "dilation_rate": 2, "activation": "relu"}, {"masked_time": False}, ["norm", "swish"]),
        ({"padding": [(1, 0)], "with_bias": False}, {"use_std": False, "param_version": 1}, ["swish", "swish"]),
    ],
    ids=["conformer", "read before the activation", "causal"],
)
def test_depthwise_convolution_with_its_norm(conv: dict[str, Any], norm: dict[str, Any], read: list[str]) -> None:
    depthwise = {"class": "conv", "n_out": WIDTH, "groups": WIDTH, "filter_size": (2,), "padding": "same"}
    layers = {
        "conv": {**depthwise, "with_bias": True, **conv, "from": "data"},
        "norm": {**NORM, **norm},
        "swish": {"class": "activation", "activation": "swish", "from": "norm"},
        "output": {"class": "combine", "kind": "mul", "from": read, "loss": "as_is"},
    }
    assert_as_one_by_one(layers)


@pytest.mark.parametrize("activation", ["swish", "gelu", "softmax"])
@pytest.mark.parametrize("kind", ["conv", "transposed_conv"])
def test_activation_of_a_convolution(kind: str, activation: str) -> None:
    """Also read before the activation, by a derivative."""
    conv = {"class": kind, "n_out": WIDTH, "filter_size": (3,), "padding": "same", "from": "data"}
    layers = {
        "a": {**conv, "activation": activation},
        "square": {"class": "eval", "eval": "source(0) ** 2", "from": "a"},
        "y": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "square"},
        "gradient": {"class": "gradient", "y": "y", "x": "a"},
        "output": {"class": "combine", "kind": "mul", "from": ["gradient", "a"], "loss": "as_is"},
    }
    assert_as_one_by_one(layers)
