"""The option ``reuse_params``: what provides each parameter, in every form, and what is refused."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

LIN = {"class": "linear", "activation": None, "n_out": 4, "from": "data"}
SQUARE = {**LIN, "n_out": 5}
MAT = {**LIN, "with_bias": False}
LSTM = {"class": "rec", "unit": "nativelstm2", "n_out": 3, "from": "data"}
SUB = {
    "class": "subnetwork",
    "from": "data",
    "subnetwork": {"a": {**SQUARE, "n_out": 5}, "output": {**LIN, "from": "a"}},
}


def _config(network: dict[str, Any], **settings: Any) -> Config:
    extern = {"data": {"dim": 5}, "classes": {"dim": 5, "sparse": True}}
    return Config({"network": network, "extern_data": extern, "behavior_version": 21, **settings})


def _feed() -> dict[str, Any]:
    rnd = np.random.RandomState(3)
    return {
        "data": rnd.normal(size=(2, 4, 5)).astype("float32"),
        "data/size0": np.array([4, 2], "int32"),
        "classes": rnd.randint(0, 5, size=(2, 4)).astype("int32"),
        "classes/size0": np.array([4, 2], "int32"),
    }


def _run(network: dict[str, Any], **kwargs: Any) -> tuple[Network, Any]:
    """Return the network with random parameters, and what it computes."""
    net = Network.from_config(_config(network), **kwargs)
    rnd = np.random.RandomState(5)
    net.set_param_values({n: rnd.normal(size=v.shape) for n, v in sorted(net.params.items())})
    return net, net.run(_feed(), with_grad=bool(net.plan.losses))


def transposed(reuse_layer: Any, **kwargs: Any) -> Any:
    """Return the transposed weights of the other layer."""
    import tensorflow as tf

    return tf.transpose(reuse_layer.params["W"])


def own(getter: Any, full_name: str, shape: Any, dtype: Any, name: str, **kwargs: Any) -> Any:
    """Create the parameter after all."""
    return getter(name=full_name, shape=shape, dtype=dtype, **kwargs)


def same(reuse_layer: Any, name: str, **kwargs: Any) -> Any:
    """Return the other parameter as it is."""
    return reuse_layer.params[name]


def scaled_own(getter: Any, full_name: str, shape: Any, dtype: Any, **kwargs: Any) -> Any:
    """Return twice a parameter of another name."""
    kwargs.pop("name")
    return 2.0 * getter(name=full_name + "_half", shape=shape, dtype=dtype, **kwargs)


A = {"a": LIN}
TIED_TO_A = {"reuse_layer": "a", "custom": transposed}
NAMES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "whole layer": ({**A, "output": {**LIN, "reuse_params": "a"}}, ["a/W", "a/b"]),
    "dict": ({**A, "output": {**LIN, "reuse_params": {"reuse_layer": "a"}}}, ["a/W", "a/b"]),
    "map, strings": ({**A, "output": {**LIN, "reuse_params": {"map": {"W": "a", "b": "a"}}}}, ["a/W", "a/b"]),
    "map, None": ({**A, "output": {**LIN, "reuse_params": {"map": {"W": "a", "b": None}}}}, ["a/W", "a/b", "output/b"]),
    "map, own": (
        {**A, "output": {**LIN, "reuse_params": {"map": {"W": "a", "b": {"auto_create_missing": True}}}}},
        ["a/W", "a/b", "output/b"],
    ),
    "map, incomplete, else the layer": (
        {**A, "output": {**LIN, "reuse_params": {"map": {"W": "a"}, "reuse_layer": "a", "auto_create_missing": True}}},
        ["a/W", "a/b"],
    ),
    "map, incomplete, else own": (
        {**A, "output": {**LIN, "reuse_params": {"map": {"W": "a"}, "auto_create_missing": True}}},
        ["a/W", "a/b", "output/b"],
    ),
    "map of maps": (
        {**A, "output": {**LIN, "reuse_params": {"map": {"W": {"map": {"W": "a"}}, "b": {"map": {"b": None}}}}}},
        ["a/W", "a/b", "output/b"],
    ),
    "the other one lacks it": (
        {"a": MAT, "output": {**LIN, "reuse_params": {"reuse_layer": "a", "auto_create_missing": True}}},
        ["a/W", "output/b"],
    ),
    "a chain": (
        {**A, "c": {**LIN, "reuse_params": "a"}, "output": {**LIN, "reuse_params": "c"}},
        ["a/W", "a/b"],
    ),
    "a loop": (
        {"a": {**SQUARE, "reuse_params": "output"}, "output": {**SQUARE, "from": "a"}},
        ["output/W", "output/b"],
    ),
    "a loop, asked from its middle": (
        {"a": {**SQUARE, "reuse_params": "output", "is_output_layer": True}, "output": {**SQUARE, "from": "a"}},
        ["output/W", "output/b"],
    ),
    "a loop through a third": (
        {
            "a": {**SQUARE, "reuse_params": {"map": {"W": "output", "b": None}}},
            "m": {**SQUARE, "activation": "tanh", "from": "a"},
            "output": {**SQUARE, "from": "m"},
        },
        ["a/b", "m/W", "m/b", "output/W", "output/b"],
    ),
    "an unused layer": (
        {"u": SQUARE, "a": {**LIN, "from": "u"}, "output": {**LIN, "from": "u2", "reuse_params": "a"}, "u2": SQUARE},
        ["a/W", "a/b", "u/W", "u/b", "u2/W", "u2/b"],
    ),
    "layer and parameter of one name": (
        {**A, "b": {**LIN, "reuse_params": {"map": {"W": "a", "b": None}}}, "output": {"class": "copy", "from": "b"}},
        ["a/W", "a/b", "b/b_1"],
    ),
    "in a subnetwork": (
        {"s": SUB, "output": {**SQUARE, "reuse_params": "s/a"}},
        ["s/a/W", "s/a/b", "s/output/W", "s/output/b"],
    ),
    "unused in a subnetwork": (
        {
            "s": {**SUB, "subnetwork": {**SUB["subnetwork"], "x": SQUARE}},  # type: ignore[dict-item]
            "o": {"class": "copy", "from": "s"},
            "output": {**SQUARE, "reuse_params": "s/x", "is_output_layer": True},
        },
        ["s/a/W", "s/a/b", "s/output/W", "s/output/b", "s/x/W", "s/x/b"],
    ),
    "from a subnetwork": (
        {"a": SQUARE, "output": {**SUB, "subnetwork": {"output": {**SQUARE, "reuse_params": "base:a"}}}},
        ["a/W", "a/b"],
    ),
    "from a subnetwork, of a layer after it": (
        {
            "s": {**SUB, "subnetwork": {"output": {**SQUARE, "reuse_params": "base:output"}}},
            "output": {**SQUARE, "from": "s"},
        },
        ["output/W", "output/b"],
    ),
    "a cell": (
        {"a": LSTM, "output": {**LSTM, "reuse_params": "a", "direction": -1}},
        ["a/rec/W", "a/rec/W_re", "a/rec/b"],
    ),
    "a cell by parts": (
        {"a": LSTM, "output": {**LSTM, "reuse_params": {"map": {"W": "a", "W_re": "a", "b": None}}}},
        ["a/rec/W", "a/rec/W_re", "a/rec/b", "output/rec/b"],
    ),
    "a cell whose scope differs": (
        {"a": {**LSTM, "name_scope": "x"}, "output": {**LSTM, "reuse_params": "a"}},
        ["x/W", "x/W_re", "x/b"],
    ),
    "a cell and its later consumer": (
        {
            "a": {**LSTM, "n_out": 5, "reuse_params": "output"},
            "output": {**LSTM, "n_out": 5, "from": "a"},
        },
        ["output/rec/W", "output/rec/W_re", "output/rec/b"],
    ),
    "custom": (
        {
            "a": MAT,
            "output": {**MAT, "from": "a", "n_out": 5, "reuse_params": {"reuse_layer": "a", "custom": transposed}},
        },
        ["a/W"],
    ),
    "custom in a map": (
        {
            "a": LIN,
            "output": {
                **LIN,
                "from": "a",
                "n_out": 5,
                "reuse_params": {"map": {"W": {"reuse_layer": "a", "custom": transposed}, "b": None}},
            },
        },
        ["a/W", "a/b", "output/b"],
    ),
    "custom of a layer after it": (
        {
            "a": {**MAT, "reuse_params": {"reuse_layer": "output", "custom": transposed}},
            "output": {**MAT, "n_out": 5, "from": "a"},
        },
        ["output/W"],
    ),
    "custom that creates": ({"output": {**LIN, "reuse_params": {"custom": own}}}, ["output/W", "output/b"]),
    "custom that creates others": (
        {"output": {**LIN, "reuse_params": {"custom": scaled_own}}},
        ["output/W_half", "output/b_half"],
    ),
    "custom that returns the same": (
        {**A, "output": {**LIN, "reuse_params": {"reuse_layer": "a", "custom": same}}},
        ["a/W", "a/b"],
    ),
    "a custom one reused": (
        {
            "a": MAT,
            "c": {**MAT, "from": "a", "n_out": 5, "reuse_params": {"reuse_layer": "a", "custom": transposed}},
            "output": {**MAT, "from": "a", "n_out": 5, "reuse_params": "c"},
        },
        ["a/W"],
    ),
    "a condition": (
        {
            "a": LIN,
            "m": {"class": "reduce", "mode": "max", "axis": ["B", "T", "F"], "from": "data"},
            "c": {"class": "compare", "kind": "less", "value": 0.0, "from": "m"},
            "output": {
                "class": "cond",
                "condition": "c",
                "true_layer": {**LIN, "reuse_params": "a"},
                "false_layer": {**LIN, "reuse_params": {"map": {"W": "a", "b": None}}},
            },
        },
        ["a/W", "a/b", "output/b"],
    ),
}


@pytest.mark.parametrize("case", sorted(NAMES))
def test_names(case: str) -> None:
    """The parameters of the network are those that the rules name, and it computes something from them."""
    network, names = NAMES[case]
    net, result = _run(network)
    assert sorted(net.params) == names
    assert np.isfinite(result.layers["output"].value).all()


def test_values_and_gradients_of_a_transposed_loop() -> None:
    """Both layers use one matrix, whose gradient sums over both."""
    reuse = {"map": {"W": {"reuse_layer": "output", "custom": transposed}}}
    network = {"a": {**MAT, "reuse_params": reuse}, "output": {**MAT, "n_out": 5, "from": "a", "loss": "as_is"}}
    net, result = _run(network)
    w = net.get_param_values()["output/W"].astype("float64")
    x = _feed()["data"].astype("float64")
    np.testing.assert_allclose(result.layers["output"].value, x @ w.T @ w, rtol=1e-4, atol=1e-5)
    valid = np.concatenate([x[0], x[1, :2]])
    ones = np.ones((len(valid), 5))
    expected = (valid @ w.T).T @ ones + (ones @ w.T).T @ valid
    np.testing.assert_allclose(result.grads["output/W"], expected, rtol=1e-3, atol=1e-4)


def test_layer_output_in_the_order_of_the_parameter() -> None:
    """The dims in 'shape' put the axes of the other layer into the order of the weights."""
    feat, out, time = FeatureDim("feat", 5), FeatureDim("out", 3), SpatialDim("time")
    for shape in ((out, feat), (feat, out)):
        network = {
            "w": {"class": "variable", "shape": shape},
            "output": {
                "class": "linear",
                "activation": None,
                "out_dim": out,
                "from": "data",
                "with_bias": False,
                "reuse_params": {"layer_output": "w", "shape": (feat, out)},
            },
        }
        config = Config(
            {"network": network, "extern_data": {"data": {"dim_tags": [batch_dim, time, feat]}}, "behavior_version": 21}
        )
        net = Network.from_config(config)
        value = np.random.RandomState(1).normal(size=[d.size for d in shape]).astype("float32")
        net.set_param_values({"w/w": value} if "w/w" in net.params else {"w": value})
        feed = {k: v for k, v in _feed().items() if k.startswith("data")}
        expected = feed["data"] @ (value if shape[0] is feat else value.T)
        np.testing.assert_allclose(net.run(feed).layers["output"].value, expected, rtol=1e-5, atol=1e-6)


def _loop(prob: dict[str, Any], emb: dict[str, Any], **around: Any) -> dict[str, Any]:
    unit = {
        "emb": {"class": "linear", "activation": None, "with_bias": False, "n_out": 6, "from": "prev:output", **emb},
        "s": {"class": "rnn_cell", "unit": "standardlstm", "n_out": 6, "from": ["emb", "data:source"]},
        "prob": {"class": "softmax", "from": "s", "target": "classes", "loss": "ce", **prob},
        "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "prob", "initial_output": 0},
    }
    return {"output": {"class": "rec", "from": "data", "target": "classes", "unit": unit}, **around}


TIED = {"map": {"W": {"reuse_layer": "emb", "custom": transposed}, "b": None}}
TIED_BACK = {"reuse_layer": "prob", "custom": transposed}
E = {**MAT, "n_out": 6, "from": "data:classes"}
LOOPS = {
    "prob": (_loop({"reuse_params": TIED}, {}), "output/rec/emb/W"),
    "emb": (_loop({}, {"reuse_params": TIED_BACK}), "output/rec/prob/W"),
    "outside": (
        _loop({}, {"reuse_params": "base:e"}, e={**MAT, "n_out": 6, "from": "data:classes"}),
        "e/W",
    ),
    "of a layer after the loop": (
        _loop({}, {"reuse_params": "base:e"}, e={**MAT, "n_out": 6, "from": "output", "is_output_layer": True}),
        "e/W",
    ),
    "from outside": (
        _loop({}, {}, e={**E, "reuse_params": "output/emb", "is_output_layer": True}),
        "output/rec/emb/W",
    ),
}


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["train", "search"])
@pytest.mark.parametrize("case", sorted(LOOPS))
def test_loops(case: str, mode: str) -> None:
    """In loops, wherever the layers are computed, and in each mode."""
    network, shared = LOOPS[case]
    net, result = _run(network, train=mode == "train", search=mode == "search")
    assert shared in net.params
    assert ("output/rec/emb/W" in net.params) == (shared == "output/rec/emb/W")
    assert sum(name.endswith("prob/W") for name in net.params) == (case != "prob")
    assert result.layers["output"].value.shape[0] == (4 if mode == "search" else 2)


@pytest.mark.slow
def test_loop_reuses_a_loop() -> None:
    """A recurrent layer whose unit is a network takes the parameters of all layers inside by their relative names."""
    unit = {
        "s": {"class": "linear", "activation": "tanh", "n_out": 4, "from": ["data:source", "prev:output"]},
        "t": {"class": "subnetwork", "from": "s", "subnetwork": {"output": {**LIN, "n_out": 4}}},
        "output": {"class": "rnn_cell", "unit": "standardlstm", "n_out": 4, "from": "t"},
    }
    other = {**unit, "extra": {**LIN, "from": "output", "is_output_layer": True}}
    rec = {"class": "rec", "from": "data", "unit": unit}
    network = {
        "a": rec,
        "output": {**rec, "reuse_params": "a"},
        "c": {**rec, "unit": other, "reuse_params": {"reuse_layer": "a", "auto_create_missing": True}},
        "d": {"class": "copy", "from": "c", "is_output_layer": True},
    }
    net, result = _run({**network, "a": {**rec, "is_output_layer": True}})
    assert {name.partition("/")[0] for name in net.params} == {"a", "c"}
    assert [name for name in net.params if name.startswith("c/")] == ["c/rec/extra/W", "c/rec/extra/b"]
    for name in ("output", "d"):
        np.testing.assert_allclose(result.layers[name].value, result.layers["a"].value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("option", [{"param_dropout": 0.5}, {"param_variational_noise": 0.5}])
@pytest.mark.parametrize("noisy", ["a", "output"])
def test_noise_stays_in_its_layer(option: dict[str, Any], noisy: str) -> None:
    """Dropout and noise on parameters act where the layer that has the option reads them, with masks of its own."""
    layers = {
        "a": {**MAT, "is_output_layer": True},
        "output": {**MAT, "reuse_params": "a"},
        "z": {**MAT, "reuse_params": "a", **option, "is_output_layer": True},
    }
    layers[noisy] = {**layers[noisy], **option}
    net, result = _run(layers, train=True)
    clean = _feed()["data"] @ net.get_param_values()["a/W"]
    values = {name: result.layers[name].value for name in layers}
    plain = ({"a", "output"} - {noisy}).pop()
    np.testing.assert_allclose(values[plain], clean, rtol=1e-4, atol=1e-5)
    assert not np.allclose(values[noisy], clean, atol=1e-3)
    assert not np.allclose(values["z"], clean, atol=1e-3)
    assert not np.allclose(values["z"], values[noisy], atol=1e-3)


def test_l2_is_that_of_each_layer() -> None:
    """A layer with L2 counts what is its own, also what a function creates for it, but not what it reuses."""
    l2 = {**LIN, "L2": 0.5, "loss": "as_is", "loss_scale": 0.0}
    for reuse in ("a", {"map": {"W": "a", "b": None}}, {"custom": scaled_own}):
        net, result = _run({"a": LIN, "output": {**l2, "reuse_params": reuse}})
        own = [v for n, v in net.get_param_values().items() if n.startswith("output/")]
        expected = 0.5 * sum(float((v.astype("float64") ** 2).sum()) for v in own)
        np.testing.assert_allclose(result.total_loss, expected, rtol=1e-4)


def wrong(**kwargs: Any) -> Any:
    """Fail."""
    raise KeyError("W")


def none(**kwargs: Any) -> Any:
    """Return no tensor."""


def integers(shape: Any, **kwargs: Any) -> Any:
    """Return another dtype."""
    import tensorflow as tf

    return tf.zeros(shape, tf.int32)


ERRORS: dict[str, tuple[Any, str]] = {
    "typo in the option": ({"reuse_leyer": "a"}, "unknown option 'reuse_leyer'. Did you mean 'reuse_layer'"),
    "typo in an entry": ({"map": {"W": {"costom": own}}}, "unknown option 'costom'. Did you mean 'custom'"),
    "typo of a parameter": ({"map": {"w": "a", "b": None}}, "'map' lacks the parameter 'W'.*Did you mean 'w'"),
    "typo where missing ones are created": (
        {"map": {"w": "a"}, "auto_create_missing": True},
        "'map' has 'w', but the layer has no such parameter. Did you mean 'W'",
    ),
    "empty": ({}, "nothing provides the parameter 'W'. Give reuse_layer"),
    "empty entry": ({"map": {"W": {}, "b": None}}, "'W' needs reuse_layer, map, custom"),
    "unknown layer": ("aa", "reuse_params: there is no layer 'aa'. Did you mean 'a'"),
    "other shape": ("data5", r"parameter 'W' of layer 'data5' has shape \(5, 7\), but \(5, 4\) is needed"),
    "no such parameter": ("n", "layer 'n' has no parameter 'b', only .*'W'.*set auto_create_missing"),
    "no parameters": ("c", "layer 'c' has no parameter 'W', only none"),
    "itself": ("output", "no layer creates the parameter, as they take it from each other: W of 'output' <- W of"),
    "each other": ("back", "they take it from each other: W of 'output' <- W of 'back' <- W of 'output'"),
    "wrong given shape": (
        {"reuse_layer": "a", "shape": [4, 5]},
        r"'W' has the shape \(5, 4\), but 'shape' is \(4, 5\)",
    ),
    "output of another shape": ({"layer_output": "c"}, r"'W' needs shape \(5, 4\), but layer_output has \[B, T"),
    "function fails": ({"custom": wrong}, "the function 'wrong', asked for 'W', failed: KeyError"),
    "function returns nothing": ({"custom": none}, "must return a tensor or a variable, not NoneType"),
    "function returns integers": ({"custom": integers}, "returns int32, but float32 is needed"),
    "function without its argument": ({"custom": lambda name: name}, "failed: TypeError"),
    "function and a missing layer": ({"custom": own, "reuse_layer": "aa"}, "there is no layer 'aa'"),
    "no function": ({"custom": "transposed"}, "'custom' must be"),
    "a number": (7, "must be a layer, a dict or None"),
}


@pytest.mark.parametrize("case", sorted(ERRORS))
def test_errors(case: str) -> None:
    """Each mistake is found while planning, by an error that names the layer and the fix."""
    value, message = ERRORS[case]
    layers = {"a": LIN, "n": MAT, "data5": {**LIN, "n_out": 7}, "c": {"class": "copy", "from": "data"}}
    layers["back"] = {**LIN, "reuse_params": "output"}
    with pytest.raises(ConfigError, match=message) as error:
        plan_from_config(_config({**layers, "output": {**LIN, "reuse_params": value}}))
    assert str(error.value).startswith("Layer 'output'")


@pytest.mark.parametrize(
    "layer, message",
    [
        ({"class": "copy", "from": "a", "reuse_params": "a"}, "Layer 'output': reuse_params has no effect"),
        ({**SUB, "reuse_params": "a"}, "Layer 'output': reuse_params has no effect"),
        ({**MAT, "reuse_params": {"map": {"W": "a", "b": None}}}, "Layer 'output': .*'map' has 'b', but"),
    ],
)
def test_what_is_not_used_is_reported(layer: dict[str, Any], message: str, caplog: Any) -> None:
    """An option, or an entry of it, that no parameter asks for is one line in the log."""
    with caplog.at_level(logging.WARNING, logger="returnn_tf"):
        plan_from_config(_config({"a": LIN, "output": layer}))
    assert any(re.search(message, record.getMessage()) for record in caplog.records)
