"""Initial values of the parameters of a network: recorded ones, options of layers, expressions with ``layer``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from tests.parity import ROOT, find_cases, numbers_by_prefix

LIN = {"class": "linear", "activation": None, "n_out": 4, "from": "data"}
CELL = {"class": "rnn_cell", "unit": "lstm", "n_out": 2, "from": "data"}


def _net(network: dict[str, Any], **settings: Any) -> Config:
    return Config({"network": network, "extern_data": {"data": {"dim": 5}}, "behavior_version": 21, **settings})


@pytest.mark.parametrize("name", find_cases("init"))
def test_recorded(name: str) -> None:
    """Where the config determines them, they are those of the reference, whatever our own seed is."""
    path = ROOT / (name + ".config")
    config = Config.from_file(str(path))
    config.update({"random_seed": 17})
    recorded = numbers_by_prefix(np.load(path.with_suffix(".npz")), "param/")
    values = Network.from_config(config).get_param_values()
    assert set(values) == set(recorded)
    for key, value in recorded.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-6, atol=1e-7, err_msg=key)


@pytest.mark.parametrize(
    "layer, expected",
    [
        ({**LIN, "forward_weights_init": "1. / (layer.input_data.dim)"}, {"W": 0.2}),
        ({**LIN, "from": ["data", "data"], "forward_weights_init": "1. / (layer.input_data.dim)"}, {"W": 0.1}),
        ({**LIN, "forward_weights_init": "float(layer.n_out)", "bias_init": np.full(4, 2.0)}, {"W": 4.0, "b": 2.0}),
        ({**LIN, "bias_init": "float(layer.sources[0].output.dim)"}, {"b": 5.0}),
        ({**LIN, "forward_weights_init": np.ones((5, 4)), "bias_init": np.float32(3)}, {"W": 1.0, "b": 3.0}),
        (
            {"class": "rec", "unit": "lstm", "n_out": 2, "from": "data", "recurrent_weights_init": 0.5},
            {"rec/W": 0.5, "rec/W_re": 0.5, "rec/b": 0.0},
        ),
        (
            {
                "class": "rec",
                "unit": "lstm",
                "n_out": 2,
                "from": "data",
                "recurrent_weights_init": {"class": "Constant", "value": 0.5},
                "forward_weights_init": 0.25,
                "bias_init": "ones",
            },
            {"rec/W": 0.25, "rec/W_re": 0.5, "rec/b": 1.0},
        ),
        ({**CELL, "weights_init": 0.5}, {"rec/W": 0.5, "rec/W_re": 0.5, "rec/b": 0.0}),
        ({**CELL, "weights_init": 0.5, "forward_weights_init": 0}, {"rec/W": 0.0, "rec/W_re": 0.5}),
        ({**CELL, "weights_init": 0.5, "recurrent_weights_init": np.zeros((2, 8))}, {"rec/W": 0.5, "rec/W_re": 0.0}),
        (
            {
                "class": "rec",
                "unit": "layernormvariantslstm",
                "unit_opts": {"norm_gain": 0.5, "norm_shift": 0.25},
                "n_out": 2,
                "from": "data",
            },
            {"rec/gamma_state_below": 0.5, "rec/gamma_new_c": 0.5, "rec/beta_input_below": 0.25},
        ),
        (
            {
                "class": "batch_norm",
                "masked_time": True,
                "gamma_init": 0.5,
                "beta_init": np.arange(5.0),
                "from": "data",
            },
            {"batch_norm/v2_gamma": 0.5, "batch_norm/v2_beta": np.arange(5.0)},
        ),
    ],
)
def test_options(layer: dict[str, Any], expected: dict[str, Any]) -> None:
    """The values of each parameter are those of its option."""
    values = Network.from_config(_net({"output": layer})).get_param_values()
    for name, value in expected.items():
        name = next(key for key in values if key.endswith(name.replace("rec/", "")) and key.count("/") <= 2)
        np.testing.assert_allclose(values[name], value, err_msg=name)


@pytest.mark.parametrize("name", ["mdlstm", "twod_lstm"])
@pytest.mark.parametrize("recurrent", [0, np.full((2, 10), 2.0)], ids=["number", "array"])
def test_options_of_grids(name: str, recurrent: Any) -> None:
    """Each parameter has the values of its option, also 0 and those of an array."""
    sources = {"mdlstm": "data:image", "twod_lstm": ["data", "data:rows"]}[name]
    layer = {"class": name, "n_out": 2, "from": sources, "recurrent_weights_init": recurrent, "forward_weights_init": 1}
    extern_data = {"data": {"dim": 5}, "rows": {"dim": 5}, "image": {"shape": (None, None, 3)}}
    config = Config({"network": {"output": layer}, "extern_data": extern_data})
    for key, value in Network.from_config(config).get_param_values().items():
        expected = {"W": 1, "V_h": recurrent, "V_v": recurrent, "b": 0}[key.rpartition("/")[2]]
        np.testing.assert_array_equal(value, np.broadcast_to(expected, value.shape), err_msg=key)


def test_our_seed_decides_the_others() -> None:
    """Without a seed of its own an initialiser depends on random_seed and the name of the parameter."""
    net = {"a": LIN, "output": {**LIN, "from": "data", "is_output_layer": True}, "c": {"class": "copy", "from": "a"}}
    net["c"]["is_output_layer"] = True
    values = [Network.from_config(_net(net, random_seed=seed)).get_param_values() for seed in (1, 1, 2)]
    np.testing.assert_array_equal(values[0]["a/W"], values[1]["a/W"])
    assert not np.allclose(values[0]["a/W"], values[2]["a/W"])
    assert not np.allclose(values[0]["a/W"], values[0]["output/W"])


@pytest.mark.parametrize(
    "layer, message",
    [
        ({**LIN, "bias_init": np.zeros(3)}, r"the initialiser of 'b': .*\(3,\), but the parameter \(4,\)"),
        ({**LIN, "bias_init": "orthogonal"}, "the initialiser of 'b': the orthogonal initialiser needs a matrix"),
        ({**LIN, "bias_init": "layer.input_dat.dim * (1)"}, "AttributeError: .*input_dat"),
        ({**LIN, "bias_init": {"class": "Constnat"}}, "Did you mean 'Constant'"),
        ({**LIN, "bias_init": {"class": "Constant", "values": 1}}, "unexpected keyword argument 'values'"),
        ({**LIN, "bias_init": [0.0]}, "option 'bias_init' must be number | str"),
    ],
)
def test_errors_name_the_layer(layer: dict[str, Any], message: str) -> None:
    """Mistakes are found while planning."""
    with pytest.raises(ConfigError, match=message) as error:
        plan_from_config(_net({"output": layer}))
    assert str(error.value).startswith("Layer 'output'")
