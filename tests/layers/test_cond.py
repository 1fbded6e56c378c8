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
