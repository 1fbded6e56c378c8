"""Subnetworks: their sources by name, and ``prev:`` inside those in loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from tests.layers.rec.searching import hypotheses

ADD = {"class": "combine", "kind": "add"}
DATA = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}


def config_of(network: dict[str, Any]) -> Config:
    return Config({"behavior_version": 21, "extern_data": DATA, "network": network})


def net_of(network: dict[str, Any], **options: Any) -> Any:
    net = Network.from_config(config_of(network), **options)
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=v.shape).astype("float32") for n, v in sorted(net.get_param_values().items())}
    net.set_param_values(values)
    return net


def feed() -> dict[str, Any]:
    x = np.random.default_rng(1).normal(size=(2, 4, 4)).astype("float32")
    lens = np.array([4, 3], "int32")
    return {"data": x, "data/size0": lens, "classes": np.ones((2, 4), "int32"), "classes/size0": lens}


def valid(value: Any) -> Any:
    return np.concatenate([row[:n] for row, n in zip(value, (4, 3))])


def subnetwork(layers: dict[str, Any], source: Any = "data:source", **options: Any) -> dict[str, Any]:
    return {"class": "subnetwork", "from": source, "subnetwork": layers, **options}


def loop(unit: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"output": {"class": "rec", "from": "data", "unit": unit, **options}}


# --- prev: inside ---

SUM = {"acc": {**ADD, "from": ["prev:acc", "data"]}, "output": {"class": "copy", "from": "acc"}}
DEEP = {"deep": subnetwork(SUM, "data"), "output": {"class": "copy", "from": "deep"}}
ONLY_OUTPUT = {"output": {**ADD, "from": ["prev:output", "data"]}}


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("layers", [SUM, DEEP, ONLY_OUTPUT], ids=["sum", "deep", "output"])
def test_prev_of_an_inner_layer(layers: dict[str, Any], moved: bool) -> None:
    unit = {"sub": subnetwork(layers), "output": {"class": "copy", "from": "sub"}}
    network = loop(unit, **({} if moved else {"optimize_move_layers_out": False}))
    found = net_of(network).run(feed()).layers["output"].value
    np.testing.assert_allclose(valid(found), valid(feed()["data"].cumsum(axis=1)), rtol=1e-5, atol=1e-5)


def test_prev_of_an_inner_layer_that_names_another_prev() -> None:
    """Nothing needs ``a`` in the step itself, so it is planned after all others, and its ``prev:`` is the only one."""
    linear = {"class": "linear", "activation": "tanh", "n_out": 3}
    inner = {"a": {**linear, "from": ["data", "base:prev:h"]}, "output": {"class": "copy", "from": "data"}}
    nested = {"sub": subnetwork(inner), "h": {**linear, "from": ["sub", "prev:sub/a"]}}
    plain = {"a": {**linear, "from": ["data:source", "prev:h"]}, "h": {**linear, "from": ["data:source", "prev:a"]}}
    nets = [net_of(loop({**unit, "output": {"class": "copy", "from": "h"}})) for unit in (nested, plain)]
    nets[1].set_param_values({n.replace("/sub/a/", "/a/"): v for n, v in nets[0].get_param_values().items()})
    values = [valid(net.run(feed()).layers["output"].value) for net in nets]
    np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)


def test_prev_of_an_inner_layer_from_outside() -> None:
    unit = {"sub": subnetwork(SUM), "output": {**ADD, "from": ["prev:sub/acc", "data:source"]}}
    found = net_of(loop(unit)).run(feed()).layers["output"].value
    x = feed()["data"]
    expected = x + np.concatenate([0 * x[:, :1], x.cumsum(axis=1)[:, :-1]], axis=1)
    np.testing.assert_allclose(valid(found), valid(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "value"), [(2.0, 2.0), ("ones", 1.0), ("base:start", None), ("base:base:start", None), ("var", None)]
)
def test_initial_output_of_an_inner_layer(given: Any, value: Any) -> None:
    start = {"class": "eval", "eval": "source(0) + 1", "from": "mean"}
    layers = {**SUM, "acc": {**SUM["acc"], "initial_output": given}}
    unit = {"sub": subnetwork(layers), "output": {"class": "copy", "from": "sub"}}
    network = {**loop(unit), "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}}
    if given == "base:start":
        unit["start"] = {**start, "from": "base:mean"}
    network["start"] = start
    net = net_of(network)
    found = net.run(feed()).layers["output"].value
    if given == "var":
        assert list(net.params) == ["output/rec/sub/acc/init_acc_var"]
        value = net.get_param_values()["output/rec/sub/acc/init_acc_var"]
    elif value is None:
        value = np.stack([row[:n].mean(0) for row, n in zip(feed()["data"], (4, 3))])[:, None] + 1
    np.testing.assert_allclose(valid(found), valid(feed()["data"].cumsum(axis=1) + value), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_cell_inside_is_that_outside() -> None:
    cell = {"class": "rnn_cell", "unit": "lstm", "n_out": 3}
    inside = {"s": {**cell, "from": ["data", "prev:s"]}, "output": {"class": "copy", "from": "s"}}
    first = net_of(loop({"sub": subnetwork(inside), "output": {"class": "copy", "from": "sub"}}))
    second = net_of(loop({"s": {**cell, "from": ["data:source", "prev:s"]}, "output": {"class": "copy", "from": "s"}}))
    second.set_param_values({n.replace("/sub/s/", "/s/"): v for n, v in first.get_param_values().items()})
    found, expected = (net.run(feed()).layers["output"].value for net in (first, second))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
def test_states_follow_the_hypotheses_of_a_search() -> None:
    """The sum of the embeddings of all labels so far, in a subnetwork and outside of it."""

    def decoder(inside: bool) -> dict[str, Any]:
        unit = {
            "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
            "sum": subnetwork(SUM, "emb") if inside else {**ADD, "from": ["prev:sum", "emb"]},
            "prob": {"class": "softmax", "n_out": 5, "from": ["sum", "base:mean"]},
            "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "prob", "initial_output": 0},
            "end": {"class": "compare", "value": 0, "from": "output"},
        }
        rec = {"class": "rec", "from": [], "target": "classes", "max_seq_len": 4, "unit": unit}
        return {"output": rec, "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}}

    inside, outside = net_of(decoder(True), search=True), net_of(decoder(False), search=True)
    outside.set_param_values(inside.get_param_values())
    found, expected = (hypotheses(net.run(feed()).layers["output"]) for net in (inside, outside))
    for mine, other in zip(found, expected):
        assert [labels for _, labels in mine] == [labels for _, labels in other]
        np.testing.assert_allclose([s for s, _ in mine], [s for s, _ in other], rtol=1e-5)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (
            loop({"output": subnetwork({"output": {**ADD, "from": ["prev:aac", "data"]}, "acc": ADD})}),
            "Did you mean 'acc'",
        ),
        ({"output": subnetwork(ONLY_OUTPUT, "data")}, "'prev:output' needs the previous step of a loop"),
        (
            loop({"output": subnetwork({**SUM, "acc": {**SUM["acc"], "initial_output": "output"}})}),
            "'output.*' has no value before the first step",
        ),
    ],
)
def test_mistakes(network: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_from_config(config_of(network))


# --- several sources ---


@pytest.mark.parametrize(
    ("name", "expected"), [("data", 1), ("data:data", 1), ("data:0", 1), ("data:1", 0), ("data:a", 1), ("data:x/b", 2)]
)
def test_sources_by_name(name: str, expected: int) -> None:
    network = {
        "a": {"class": "eval", "eval": "source(0) * 2", "from": "data"},
        "x": subnetwork({"b": {"class": "eval", "eval": "source(0) * 3", "from": "data"}, "output": ADD}, "data"),
        "s": subnetwork({"output": {"class": "copy", "from": name}}, ["a", "data", "x/b"], concat_sources=False),
        "output": {"class": "copy", "from": "s"},
    }
    network["x"]["subnetwork"]["output"] = {"class": "copy", "from": "b"}
    found = net_of(network).run(feed()).layers["output"].value
    np.testing.assert_allclose(found, feed()["data"] * (expected + 1), rtol=1e-6)


def test_dropout_of_sources_that_are_not_concatenated() -> None:
    network = {
        "output": subnetwork({"output": {"class": "copy", "from": "data"}}, "data", concat_sources=False, dropout=0.1)
    }
    with pytest.raises(ConfigError, match="concat_sources is False"):
        plan_from_config(config_of(network))


def nested(**options: Any) -> dict[str, Any]:
    """Return a loop whose step has a layer inside a layer, with a loss or as a result."""
    inner = {"class": "softmax", "from": "data", **options}
    sub = {"class": "subnetwork", "from": ["data:source", "prev:s"], "subnetwork": {"h": inner, "output": {
        "class": "linear", "activation": "tanh", "n_out": 3, "from": "h"}}}  # fmt: skip
    unit = {"s": sub, "output": {"class": "copy", "from": "s"}}
    return {"loop": {"class": "rec", "from": "data", "unit": unit}, "output": {"class": "copy", "from": "loop"}}


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
def test_results_inside_of_a_step(twice: bool) -> None:
    """Loss and values for all steps, as if the layers were layers of the loop."""
    network = nested(n_out=5, loss="ce", is_output_layer=True)
    plain = nested()
    plain["loop"]["unit"] = {
        "h": {"class": "softmax", "n_out": 5, "from": ["data:source", "prev:s"], "loss": "ce", "is_output_layer": True},
        "s": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "h"},
        "output": {"class": "copy", "from": "s"},
    }
    path = "loop/s/h"
    if twice:
        inner = network["loop"]["unit"]["s"]
        network["loop"]["unit"]["s"] = {
            **inner, "subnetwork": {"in": {**inner, "from": "data"}, "output": {"class": "copy", "from": "in"}},
        }  # fmt: skip
        path = "loop/s/in/h"
    nets = [Network.from_config(config_of(n), train=True) for n in (network, plain)]
    rng = np.random.default_rng(2)
    values = {n: rng.normal(size=v.shape) for n, v in nets[1].get_param_values().items()}
    nets[1].set_param_values(values)
    names = {n: "loop/rec/" + n[len("loop/rec/s/") :].replace("in/", "") for n in nets[0].params}
    nets[0].set_param_values({n: values[o.replace("rec/output", "rec/s")] for n, o in names.items()})
    mine, expected = (net.run(feed(), with_grad=True) for net in nets)
    np.testing.assert_allclose(mine.losses[path], expected.losses["loop/h"], rtol=1e-5)
    assert mine.errors[path] == expected.errors["loop/h"]
    np.testing.assert_allclose(mine.layers[path].value, expected.layers["loop/h"].value, rtol=1e-5)
    for name, other in names.items():
        other = other.replace("rec/output", "rec/s")
        np.testing.assert_allclose(mine.grads[name], expected.grads[other], rtol=1e-4, atol=1e-6)
    assert not plan_from_config(config_of(network)).losses  # like all losses in loops
    assert plan_from_config(config_of(network)).omitted_losses == (path,)


def test_results_of_a_loop_inside_of_a_step() -> None:
    inner = {
        "sum": {**ADD, "from": ["data:source", "prev:sum"], "is_output_layer": True},
        "output": {"class": "copy", "from": "sum"},
    }
    unit = {
        "in": {"class": "rec", "from": "all", "unit": inner},
        "last": {"class": "reduce", "mode": "sum", "axis": "T", "from": "in"},
        "output": {**ADD, "from": ["last", "prev:output"]},
        "all": {**ADD, "from": ["base:data", "prev:output"]},
    }
    network = {"loop": {"class": "rec", "from": "data", "unit": unit}, "output": {"class": "copy", "from": "loop"}}
    values = feed()
    result = Network.from_config(config_of(network)).run(values)
    data, lens = values["data"].astype("float64"), values["data/size0"]
    got = result.layers["loop/in/sum"]
    for b, n in enumerate(lens):
        out = np.zeros(4)
        for t in range(n):
            sums = (data[b, :n] + out).cumsum(axis=0)
            out = sums.sum(axis=0) + out
            np.testing.assert_allclose(result.layers["output"].value[b, t], out, rtol=1e-3)
            np.testing.assert_allclose(got.value[b][t, :n], sums, rtol=1e-3)


@pytest.mark.parametrize("source", ["base:data", "base:data:data"])
def test_data_of_the_network_around_the_outermost_one(source: str) -> None:
    plan = plan_from_config(config_of({"output": {"class": "copy", "from": source}}))
    assert str(plan.outputs["output"].output) == "[B, T|time, F|feature:data=4] float32"
    with pytest.raises(ConfigError, match="'base:h' refers to the outer network, but this network is not nested"):
        plan_from_config(config_of({"output": {"class": "copy", "from": "base:h"}}))
