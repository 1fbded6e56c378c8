"""Subnetworks that use layers inside of each other: dependencies are between the inner layers."""

import numpy as np
import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import ConfigError
from tests.compiler.random_subnets import random_subnets
from tests.layers.nets import LENS, config_of, feed, net_of

PLUS, TIMES = "source(0) + 1.", "source(0) * 2."


def subnet(source=(), **layers):
    return {"class": "subnetwork", "from": list(source), "subnetwork": layers}


def evaluate(text, source):
    return {"class": "eval", "eval": text, "from": source}


def copy(source, **more):
    return {"class": "copy", "from": source, **more}


def add(*sources):
    return {"class": "combine", "kind": "add", "from": list(sources)}


#: Networks, and the function of the input that each computes.
NETWORKS = {
    "two": ({
        "a": subnet(x=evaluate(PLUS, "base:data"), output=copy("base:b/y")),
        "b": subnet(y=evaluate(TIMES, "base:data"), output=copy("base:a/x")),
        "output": add("a", "b"),
    }, lambda x: x + 1 + 2 * x),
    "a layer in between, first": ({
        "u": evaluate(TIMES, "a/x"),
        "a": subnet(x=evaluate(PLUS, "base:data"), w=copy("base:u"), output=evaluate(PLUS, "w")),
        "output": add("u", "a"),
    }, lambda x: 2 * (x + 1) * 2 + 1),
    "a layer in between, last": ({
        "a": subnet(x=evaluate(PLUS, "base:data"), w=copy("base:u"), output=evaluate(PLUS, "w")),
        "u": evaluate(TIMES, "a/x"),
        "output": add("a", "u"),
    }, lambda x: 2 * (x + 1) * 2 + 1),
    "three": ({
        "a": subnet(x=evaluate(PLUS, "base:data"), z=evaluate(TIMES, "base:b/y"), output=copy("base:c/z")),
        "b": subnet(y=evaluate(PLUS, "base:c/x"), output=copy("base:a/z")),
        "c": subnet(x=evaluate(TIMES, "base:a/x"), z=copy("base:b"), output=copy("x")),
        "output": add("a", "b", "c"),
    }, lambda x: 2 * (2 * (2 * (x + 1) + 1)) + 2 * (x + 1)),
    "nested": ({
        "a": subnet(b=subnet(c=evaluate(PLUS, "base:base:data"), output=evaluate(TIMES, "base:base:d/z")),
                    output=copy("b")),
        "d": subnet(z=evaluate(PLUS, "base:a/b/c"), output=copy("base:a")),
        "output": add("a", "d"),
    }, lambda x: 2 * 2 * (x + 2)),
    "nested, the other first": ({
        "d": subnet(z=evaluate(PLUS, "base:a/b/c"), output=copy("base:a")),
        "a": subnet(b=subnet(c=evaluate(PLUS, "base:base:data"), output=evaluate(TIMES, "base:base:d/z")),
                    output=copy("b")),
        "output": add("d", "a"),
    }, lambda x: 2 * 2 * (x + 2)),
    "with a source": ({
        "h": evaluate(PLUS, "data"),
        "a": subnet(["h"], x=evaluate(PLUS, "data"), output=add("data", "base:b/y")),
        "b": subnet(["h"], y=evaluate(TIMES, "base:a/x"), output=add("data", "base:a/x")),
        "output": add("a", "b"),
    }, lambda x: (x + 1) + 2 * (x + 2) + (x + 1) + (x + 2)),
    "a source that needs a layer inside": ({
        "a": subnet(["u"], x=evaluate(PLUS, "base:data"), output=evaluate(TIMES, "data")),
        "u": evaluate(PLUS, "a/x"),
        "output": copy("a"),
    }, lambda x: 2 * (x + 2)),
    "a source inside of the network that needs it": ({
        "a": subnet(x=evaluate(PLUS, "base:data"), output=copy("base:b/z")),
        "b": subnet(["a/x"], z=evaluate(TIMES, "data"), output=copy("base:a")),
        "output": copy("b"),
    }, lambda x: 2 * (x + 1)),
    "outputs that inner layers need": ({
        "a": subnet(w=evaluate(PLUS, "base:b"), output=evaluate(TIMES, "base:data")),
        "b": subnet(w=evaluate(PLUS, "base:a"), output=evaluate(PLUS, "base:data")),
        "output": add("a/w", "b/w"),
    }, lambda x: (x + 1 + 1) + (2 * x + 1)),
    "a layer between layers of two levels": ({
        "p": evaluate(PLUS, "data"),
        "a": subnet(b=subnet(x=evaluate(TIMES, "base:base:c/y"), output=copy("base:base:p")),
                    output=evaluate(PLUS, "base:u")),
        "c": subnet(y=evaluate(PLUS, "base:a/b/output"), output=evaluate(PLUS, "base:u")),
        "u": add("a/b", "p"),
        "output": add("a/b/x", "c", "a"),
    }, lambda x: 2 * (x + 2) + 2 * (2 * (x + 1) + 1)),
    "in size_target": ({
        "a": subnet(x=evaluate(PLUS, "base:data"), output=copy("base:b")),
        "b": {**copy("data"), "size_target": "a/x"},
        "output": copy("a"),
    }, lambda x: x),
}  # fmt: skip


def place(layers, where):
    """Return a network with these layers at its top, in a subnetwork, or in a loop."""
    if where == "top":
        return layers, "output"
    if where == "subnetwork":
        return {"output": subnet(["data"], **layers)}, "output"
    unit = {**layers, "output": add("inner", "prev:output"), "inner": layers["output"]}
    moved = where == "moved out of a loop"
    return {"output": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved}}, "output"


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("where", ["top", "subnetwork", "loop", "moved out of a loop"])
def test_values(name, where):
    layers, function = NETWORKS[name]
    if "loop" in where and name == "in size_target":
        pytest.skip("a step has no lengths")
    network, output = place(layers, where)
    value = net_of(network).run(feed()).layers[output].value
    expected = function(feed()["data"])
    frames = (np.arange(LENS.max())[None] < LENS[:, None])[..., None]
    if "loop" in where:
        expected = expected.cumsum(axis=1)
    np.testing.assert_allclose(value * frames, expected * frames, rtol=1e-4)


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_random_networks(first):
    """Layers without a cycle are planned, whichever subnetworks they are in, and all results are."""
    for seed in range(first, first + 10):
        network, values, results = random_subnets(seed)
        plan = plan_from_config(config_of(network), train=True)
        found = {*plan.outputs, *(loss.name for loss in plan.losses)}
        assert set(results) <= found and found <= set(values), seed
    value = net_of(network).run(feed()).layers["output"].value
    np.testing.assert_allclose(value, values["output"][0] * feed()["data"] + values["output"][1], rtol=1e-4)


def test_a_long_chain():
    """Layers that a part of a network needs are planned before it, not each within the one behind it."""
    first = "base:base:a/w"
    blocks = {
        "b%d" % i: subnet(x=evaluate(PLUS, "base:b%d" % (i - 1) if i else first), output=copy("x")) for i in range(150)
    }
    network = {
        "long": subnet(**blocks, output=copy("b149")),
        "a": subnet(w=copy("base:data"), output=copy("base:long/b149")),
        "output": add("long", "a"),
    }
    assert "long/b149/x" in plan_from_config(config_of(network)).by_path()


def test_names_of_parameters_and_losses():
    linear = {"class": "linear", "activation": None, "n_out": 3}
    net = net_of({
        "a": subnet(["data"], x={**linear, "from": "data"}, output={**linear, "from": "base:b/y"}),
        "b": subnet(["data"], y={**linear, "from": "base:a/x", "loss": "as_is"}, output=copy("base:a")),
        "output": copy("b"),
    })  # fmt: skip
    assert {n for n in net.params if n.endswith("W")} == {"a/x/W", "a/output/W", "b/y/W"}
    result = net.run(feed(), with_grad=True)
    assert list(result.losses) == ["b/y"]
    assert abs(result.grads["a/x/W"]).max() > 0


MISTAKES = {
    "inner layers": ({
        "a": subnet(x=copy("base:b/y"), output=copy("x")),
        "b": subnet(y=copy("base:a/x"), output=copy("y")),
        "output": add("a", "b"),
    }, r"in a cycle: .*b/y <- .*a/x <- .*b/y"),
    "whole": ({
        "a": subnet(output=copy("base:b")),
        "b": subnet(output=copy("base:a")),
        "output": copy("a"),
    }, r"in a cycle: b/output <- a <- a/output <- b/output"),
    "with a source": ({
        "a": subnet(["u"], x=copy("data"), output=copy("x")),
        "u": copy("a/x"),
        "output": copy("a"),
    }, r"in a cycle: .*u <- .*a/x <- .*u"),
    "no such layer": ({
        "a": subnet(energy=copy("base:data"), output=copy("base:u")),
        "u": copy("a/enregy"),
        "output": copy("a"),
    }, r"layer 'a' has no part 'enregy'. Did you mean 'energy'"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_mistakes(name):
    layers, match = MISTAKES[name]
    with pytest.raises(ConfigError, match=match):
        net_of(layers)


def test_a_loop_leaves_them_out():
    """Layers that need each other's inner layers of the same step may be computed for all steps at once."""
    layers = NETWORKS["two"][0]
    unit = {**layers, "output": add("inner", "prev:output"), "inner": layers["output"]}
    unit = {name: dict(layer) for name, layer in unit.items()}
    net = net_of({"output": {"class": "rec", "from": "data", "unit": unit}})
    loop = next(node for node in net.plan.nodes if node.path == "output/loop")
    assert loop.layer.loop.zones["a"][0] == loop.layer.loop.zones["b"][0] == "before the loop"
