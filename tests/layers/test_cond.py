"""`cond`: which branch is computed, shared parameters, lengths, gradients, messages."""

import numpy
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import LENS, feed, net_of, template

TANH = {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"}
SIGMOID = {**TANH, "activation": "sigmoid"}


def network(true, false, limit=1e6, **more):
    return {
        "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "data"},
        "c": {"class": "compare", "kind": "less", "value": limit, "from": "sum"},
        "output": {"class": "cond", "condition": "c", "true_layer": true, "false_layer": false},
        "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "output", "loss": "as_is"},
        **more,
    }


@pytest.mark.parametrize("limit,func", [(1e6, numpy.tanh), (-1e6, lambda x: 1 / (1 + numpy.exp(-x)))])
def test_one_of_two(limit, func):
    net = net_of(network(TANH, SIGMOID, limit))
    assert {n: tuple(v.shape) for n, v in net.params.items()} == {"output/W": (3, 3), "output/b": (3,)}
    result = net.run(feed(), with_grad=True)
    params = {n: v.numpy() for n, v in net.params.items()}
    out = result.layers["output"]
    numpy.testing.assert_allclose(out.value, func(feed()["data"] @ params["output/W"] + params["output/b"]), rtol=1e-5)
    assert out.sizes[1].tolist() == LENS.tolist()
    assert abs(result.grads["output/W"]).max() > 0


def test_gradient_only_of_the_layer_that_ran():
    true = {"class": "subnetwork", "from": "data", "subnetwork": {"a": TANH, "output": {**TANH, "from": "a"}}}
    false = {
        "class": "subnetwork",
        "from": "data",
        "subnetwork": {"b": TANH, "output": {**TANH, "from": ["b", "base:h"]}},
    }
    false["subnetwork"]["output"] = {**TANH, "from": "mix"}
    false["subnetwork"]["mix"] = {"class": "combine", "kind": "add", "from": ["b", "base:h"]}
    for limit, used, unused in [(1e6, "a", "b"), (-1e6, "b", "a")]:
        net = net_of(network(true, false, limit, h={**TANH, "from": "data"}))
        assert set(net.params) == {n + p for n in ("h", "output/a", "output/b", "output/output") for p in ("/W", "/b")}
        grads = net.run(feed(), with_grad=True).grads
        assert abs(grads["output/%s/W" % used]).max() > 0
        assert abs(grads["output/output/W"]).max() > 0
        assert "output/%s/W" % unused not in grads or abs(grads["output/%s/W" % unused]).max() == 0


@pytest.mark.parametrize("limit", [1e6, -1e6])
def test_lengths_that_a_branch_makes(limit):
    pool = {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "data"}
    mask = {"class": "masked_computation", "mask": "m", "unit": {"class": "copy"}, "from": "data"}
    more = {
        "s": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
        "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "s"},
        "m2": {"class": "compare", "kind": "greater", "value": -1e6, "from": "s"},
    }
    net = net_of(network(mask, {**mask, "mask": "m2"}, limit, **more))
    lens = net.run(feed()).layers["output"].sizes[1]
    positive = feed()["data"].sum(axis=2) > 0
    expected = [positive[b, :n].sum() for b, n in enumerate(LENS)] if limit > 0 else LENS
    assert lens.tolist() == list(expected)
    out = net_of(network(pool, pool, limit)).run(feed()).layers["output"]
    assert out.sizes[1].tolist() == [2, 1, 2]


def test_in_a_loop():
    unit = {
        "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "F"], "from": "prev:output"},
        "c": {"class": "compare", "kind": "less", "value": 0.5, "from": "sum"},
        "output": {
            "class": "cond",
            "condition": "c",
            "true_layer": {**TANH, "from": ["data:source", "prev:output"]},
            "false_layer": {"class": "eval", "eval": "source(0) * 0.5", "from": "prev:output", "n_out": 3},
            "n_out": 3,
        },
    }
    loop = {"class": "rec", "from": "data", "unit": unit}
    net = net_of({"loop": loop, "output": {"class": "copy", "from": "loop"}})
    params = {n: v.numpy() for n, v in net.params.items()}
    out = net.run(feed()).layers["output"].value
    last, data = numpy.zeros([3, 3]), feed()["data"]
    for t in range(max(LENS)):
        if last.sum() < 0.5:
            x = numpy.concatenate([data[:, t], last], axis=1)
            last = numpy.tanh(x @ params["loop/rec/output/W"] + params["loop/rec/output/b"])
        else:
            last = last * 0.5
        numpy.testing.assert_allclose(out[:, t], last, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "true,false,more,match",
    [
        (TANH, {**TANH, "n_out": 2}, {}, "the shapes"),
        (TANH, {"class": "slice", "axis": "F", "slice_end": 2, "from": "data"}, {}, "true_layer has"),
        (TANH, {"class": "copy", "from": "labels2"}, {}, "there is no layer"),
        (TANH, {"n_out": 3}, {}, "'false_layer' must be a layer"),
        ({**TANH, "loss": "ce", "target": "labels"}, TANH, {}, "has a loss"),
        (TANH, TANH, {"c": {"class": "compare", "kind": "less", "value": 0.0, "from": "data"}}, "single bool"),
    ],
)
def test_messages(true, false, more, match):
    with pytest.raises(ConfigError, match=match) as info:
        template(network(true, false, **more))
    assert "Layer 'output" in str(info.value)


# --- parts, scopes ---


def branch(activation, **layers):
    inner = {"a": {**TANH, "activation": activation, "is_output_layer": True}, "output": {**TANH, "n_out": 2}, **layers}
    return {"class": "subnetwork", "from": "data", "subnetwork": inner}


@pytest.mark.parametrize("limit,func", [(1e6, numpy.tanh), (-1e6, lambda x: 1 / (1 + numpy.exp(-x)))])
@pytest.mark.parametrize("loop", [False, True])
def test_parts_of_both(limit, func, loop):
    if loop:
        source = {
            key: {**value, "from": "data:source"} for key, value in (("t", branch("tanh")), ("f", branch("sigmoid")))
        }
        unit = {
            "cond": {"class": "cond", "condition": "base:c", "true_layer": source["t"], "false_layer": source["f"]},
            "output": {"class": "combine", "kind": "add", "from": ["cond/a", "prev:output"]},
        }
        layers = network(TANH, TANH, limit, both={"class": "rec", "from": "data", "unit": unit})
        net = net_of({**layers, "output": {"class": "copy", "from": "both"}})
        prefix = "both/rec/cond/"
    else:
        layers = network(branch("tanh"), branch("sigmoid"), limit)
        layers["both"] = {"class": "copy", "from": ["output/a", "output/output"], "is_output_layer": True}
        net = net_of(layers)
        prefix = "output/"
    params = {n: v.numpy() for n, v in net.params.items()}
    result = net.run(feed())
    a = func(feed()["data"] @ params[prefix + "a/W"] + params[prefix + "a/b"])
    if loop:
        mask = numpy.arange(a.shape[1])[None, :, None] < LENS[:, None, None]
        numpy.testing.assert_allclose(result.layers["output"].value * mask, a.cumsum(axis=1) * mask, rtol=1e-4)
    else:
        assert set(result.layers) == {"output", "both", "loss"}
        out = numpy.tanh(feed()["data"] @ params["output/output/W"] + params["output/output/b"])
        numpy.testing.assert_allclose(result.layers["both"].value, numpy.concatenate([a, out], 2), rtol=1e-5)


@pytest.mark.parametrize("limit", [1e6, -1e6])
def test_part_with_lengths_of_its_own(limit):
    pool = {
        "class": "pool",
        "mode": "max",
        "pool_size": (2,),
        "padding": "same",
        "from": "data",
        "is_output_layer": True,
    }
    mask = {"class": "masked_computation", "mask": "base:m", "unit": {"class": "copy"}, "from": "data"}
    layers = network(branch("tanh", p={**mask}), branch("tanh", p={**mask, "mask": "base:m2"}), limit)
    for key in ("true_layer", "false_layer"):
        layers["output"][key]["subnetwork"]["p"]["is_output_layer"] = True
        layers["output"][key]["subnetwork"]["q"] = pool
    layers["s"] = {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"}
    layers["m"] = {"class": "compare", "kind": "greater", "value": 0.0, "from": "s"}
    layers["m2"] = {"class": "compare", "kind": "greater", "value": -1e6, "from": "s"}
    layers["kept"] = {"class": "copy", "from": "output/p", "is_output_layer": True}
    result = net_of(layers).run(feed())
    positive = (feed()["data"].sum(-1) > 0) & (numpy.arange(feed()["data"].shape[1])[None] < LENS[:, None])
    expected = positive.sum(1) if limit > 0 else LENS
    assert result.layers["kept"].sizes[1].tolist() == expected.tolist()


def test_scopes():
    scoped = {**TANH, "name_scope": ""}
    layers = network(scoped, {"class": "copy", "from": "h"}, h=TANH)
    assert set(net_of(layers).params) == {"W", "b", "h/W", "h/b"}
    layers = network({**TANH, "name_scope": "x/y"}, {**SIGMOID, "name_scope": "/x/y"})
    assert set(net_of(layers).params) == {"x/y/W", "x/y/b"}
    layers = network({**branch("tanh"), "name_scope": ""}, TANH)
    layers["output"]["false_layer"] = {**TANH, "n_out": 2}
    assert {n for n in net_of(layers).params if n.endswith("W")} == {"a/W", "output/W"}
    layers = network(TANH, SIGMOID)
    layers["output"]["name_scope"] = ""
    assert set(net_of(layers).params) == {"output/W", "output/b"}
    inner = {**layers["output"], "condition": "base:c", "true_layer": scoped}
    layers = network(TANH, TANH, sub={"class": "subnetwork", "from": "data", "subnetwork": {"output": inner}})
    layers["more"] = {"class": "copy", "from": "sub", "is_output_layer": True}
    assert {"sub/W", "sub/output/W"} < set(net_of(layers).params)


@pytest.mark.parametrize(
    "name,text",
    [("b", "has no part 'b'"), ("aa", "Did you mean 'a'"), ("hidden", "has no part 'hidden'")],
)
def test_parts_that_not_both_have(name, text):
    layers = network(branch("tanh", b={**TANH, "is_output_layer": True}, hidden=TANH), branch("tanh", hidden=TANH))
    with pytest.raises(ConfigError, match=text):
        net_of({**layers, "part": {"class": "copy", "from": "output/" + name, "is_output_layer": True}})
