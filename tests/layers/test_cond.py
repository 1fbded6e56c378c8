"""`cond`: which branch is computed, shared parameters, lengths, gradients, messages."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import LENS, feed, net_of, template
from tests.layers.rec.searching import frame_loop, hypotheses, search_net

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


@pytest.mark.parametrize("limit,func", [(1e6, np.tanh), (-1e6, lambda x: 1 / (1 + np.exp(-x)))])
def test_one_of_two(limit, func):
    net = net_of(network(TANH, SIGMOID, limit))
    assert {n: tuple(v.shape) for n, v in net.params.items()} == {"output/W": (3, 3), "output/b": (3,)}
    result = net.run(feed(), with_grad=True)
    params = {n: v.numpy() for n, v in net.params.items()}
    out = result.layers["output"]
    np.testing.assert_allclose(out.value, func(feed()["data"] @ params["output/W"] + params["output/b"]), rtol=1e-5)
    assert out.sizes[1].tolist() == LENS.tolist()
    assert abs(result.grads["output/W"]).max() > 0


SUM = {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "data"}
OF_SUM = {
    "class": "subnetwork", "from": "data",
    "subnetwork": {
        "h": {"class": "linear", "activation": None, "n_out": 1, "from": "data", "with_bias": False},
        "sum": {**SUM, "from": "h"},
        "output": {"class": "compare", "kind": "equal", "value": 1e6, "from": "sum"},
    },
}  # fmt: skip
#: A condition as a dict, whether it is true, and its parameters.
CONDITIONS = {
    "flag": ({"class": "train_flag"}, False, []),
    "comparison": ({"class": "compare", "kind": "less", "value": 1e6, "from": "sum"}, True, []),
    "code": (
        {"class": "eval", "eval": "source(0) > 1e6", "from": "sum", "out_type": {"dtype": "bool"}}, False, [],
    ),
    "code without sources": (
        {"class": "eval", "eval": "tf.constant(True)", "from": [], "out_type": {"dims": (), "dtype": "bool"}}, True, [],
    ),
    "subnetwork": (OF_SUM, False, ["output/condition/h/W"]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_condition_as_a_dict(name):
    condition, is_true, params = CONDITIONS[name]
    net = net_of({"sum": SUM, "output": {**network(TANH, SIGMOID)["output"], "condition": condition}})
    assert sorted(net.params) == sorted(["output/W", "output/b", *params])
    values = net.get_param_values()
    y = feed()["data"] @ values["output/W"] + values["output/b"]
    expected = np.tanh(y) if is_true else 1 / (1 + np.exp(-y))
    np.testing.assert_allclose(net.run(feed()).layers["output"].value, expected, rtol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    "condition, steps",
    [
        ({"class": "train_flag"}, 0),
        ({"class": "compare", "kind": "less", "value": 2, "from": ":i"}, 2),
        ({"class": "compare", "kind": "less", "value": 1, "from": "prev:i"}, 2),
    ],
)
def test_condition_as_a_dict_in_a_loop(condition, steps, moved):
    unit = {
        "i": {"class": "copy", "from": ":i", "initial_output": 0},
        "c": {
            "class": "cond", "condition": condition,
            "true_layer": {"class": "eval", "eval": "source(0) * 2.0", "from": "data:source"},
            "false_layer": {"class": "copy", "from": "data:source"},
        },
        "output": {"class": "combine", "kind": "add", "from": ["c", "prev:output"]},
    }  # fmt: skip
    net = net_of({"output": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved}})
    result = net.run(feed()).layers["output"].value
    factors = np.array([2.0 if t < steps else 1.0 for t in range(4)])
    for got, x, n in zip(result, feed()["data"], LENS):
        np.testing.assert_allclose(got[:n], (x * factors[:, None]).cumsum(axis=0)[:n], rtol=1e-5)


@pytest.mark.parametrize("source", ["data:source", "prev:output"])
@pytest.mark.parametrize("inside", [False, True])
def test_branch_with_the_previous_output(source, inside):
    """Its template follows from that of the `cond`, whichever of the branches it is and whether it is one of a part."""
    other = {"data:source": "prev:output", "prev:output": "data:source"}[source]
    branches = [{"class": "copy", "from": name} for name in (source, other)]
    if inside:
        output = {"class": "copy", "from": "x"}
        parts = [{"x": {**x, "from": "base:" + x["from"], "is_output_layer": True}, "output": output} for x in branches]
        branches = [{"class": "subnetwork", "from": [], "subnetwork": part} for part in parts]
    condition = {"class": "compare", "kind": "less", "value": 2, "from": ":i"}
    unit = {
        "c": {"class": "cond", "condition": condition, "true_layer": branches[0], "false_layer": branches[1]},
        "output": {"class": "copy", "from": "c/x" if inside else "c"},
    }
    result = net_of({"output": {"class": "rec", "from": "data", "unit": unit}}).run(feed()).layers["output"].value
    x = feed()["data"]
    last = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        last = x[:, t] if (t < 2) == (source == "data:source") else last
        np.testing.assert_allclose(result[t < LENS, t], last[t < LENS])


@pytest.mark.slow
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
    last, data = np.zeros([3, 3]), feed()["data"]
    for t in range(max(LENS)):
        if last.sum() < 0.5:
            x = np.concatenate([data[:, t], last], axis=1)
            last = np.tanh(x @ params["loop/rec/output/W"] + params["loop/rec/output/b"])
        else:
            last = last * 0.5
        np.testing.assert_allclose(out[:, t], last, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "true,false,more,match",
    [
        (TANH, {**TANH, "n_out": 2}, {}, "the shapes"),
        (TANH, {"class": "slice", "axis": "F", "slice_end": 2, "from": "data"}, {}, "true_layer has"),
        (TANH, {"class": "copy", "from": "labels2"}, {}, "there is no layer"),
        (TANH, {"n_out": 3}, {}, "'false_layer' must be a layer"),
        ({**TANH, "darc1": 1.0}, TANH, {}, "has darc1 or spatial_smoothing"),
        ({**TANH, "loss": "mse", "target": "classes"}, TANH, {}, "neither a layer nor a data key"),
        ({**TANH, "loss": "mse", "target": "layer:loss"}, TANH, {}, "depend on each other|loss"),
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


@pytest.mark.sampled
@pytest.mark.parametrize("limit,func", [(1e6, np.tanh), (-1e6, lambda x: 1 / (1 + np.exp(-x)))])
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
        mask = np.arange(a.shape[1])[None, :, None] < LENS[:, None, None]
        np.testing.assert_allclose(result.layers["output"].value * mask, a.cumsum(axis=1) * mask, rtol=1e-4)
    else:
        assert set(result.layers) == {"output", "both", "loss"}
        out = np.tanh(feed()["data"] @ params["output/output/W"] + params["output/output/b"])
        np.testing.assert_allclose(result.layers["both"].value, np.concatenate([a, out], 2), rtol=1e-5)


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
    positive = (feed()["data"].sum(-1) > 0) & (np.arange(feed()["data"].shape[1])[None] < LENS[:, None])
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


# --- losses in the branches ---


def labelled(loss, **options):
    """Return a branch with a loss on an inner layer."""
    softmax = {"class": "softmax", "n_out": 5, "from": "data", "loss": loss, "target": "labels", **options}
    return {"class": "subnetwork", "from": "data", "subnetwork": {"s": softmax, "output": TANH}}


def cross_entropy(net, name="output/s", smoothing=0.0):
    """Sum over the valid frames, and the number of them."""
    params = {n: v.numpy() for n, v in net.params.items()}
    z = feed()["data"] @ params[name + "/W"] + params[name + "/b"]
    log_p = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    mask = np.arange(4) < LENS[:, None]
    return -(np.take_along_axis(log_p, feed()["labels"][..., None], 2)[..., 0] * mask).sum(), mask.sum()


@pytest.mark.parametrize("limit", [1e6, -1e6])
def test_loss_of_one_branch(limit):
    net = net_of(network(labelled("ce"), {**TANH}, limit), train=True)
    result = net.run(feed(), with_grad=True)
    value, count = cross_entropy(net)
    assert sorted(result.losses) == ["loss", "output/s"]
    taken = limit > 0
    np.testing.assert_allclose(result.losses["output/s"], value if taken else 0, rtol=1e-5)
    assert result.counts["output/s"] == (count if taken else 0)
    assert (result.errors["output/s"] > 0) == taken
    np.testing.assert_allclose(result.total_loss, sum(result.losses.values()), rtol=1e-6)
    assert (abs(result.grads["output/s/W"]).max() > 0) == taken


@pytest.mark.parametrize("limit", [1e6, -1e6])
def test_loss_of_both_branches(limit):
    """One loss in the reports, whose options differ by branch."""
    both = [labelled("ce", loss_opts={"label_smoothing": s, "use_normalized_loss": True}) for s in (0.0, 0.1)]
    net = net_of(network(*both, limit), train=True)
    plain, count = cross_entropy(net)
    result = net.run(feed())
    assert len(result.losses) == 2
    if limit > 0:
        np.testing.assert_allclose(result.losses["output/s"], plain / count, rtol=1e-5)
    else:
        assert abs(result.losses["output/s"] - plain / count) > 1e-3
    one_sided = net_of(network(both[0], TANH, -1e6), train=True).run(feed())  # no frames, but no NaN either
    assert one_sided.losses["output/s"] == 0 and np.isfinite(one_sided.total_loss)


def test_loss_on_the_layer_of_a_branch():
    true = {"class": "softmax", "n_out": 5, "from": "data", "loss": "ce", "target": "labels", "loss_scale": 0.5}
    layers = network(true, {**true, "loss": None, "loss_scale": None})
    layers["loss"]["loss"] = None
    net = net_of(layers, train=True)
    result = net.run(feed())
    np.testing.assert_allclose(result.losses["output"], cross_entropy(net, "output")[0], rtol=1e-5)
    np.testing.assert_allclose(result.total_loss, result.losses["output"] / 2, rtol=1e-6)
    values = feed()
    del values["labels"], values["labels/size0"]
    assert "labels" not in net.data_keys(net.fetch_nodes(["output"]), with_losses=False)


def test_losses_that_differ():
    with pytest.raises(ConfigError, match="its weight .loss_scale. differs"):
        net_of(network(labelled("ce"), labelled("ce", loss_scale=0.1)), train=True)


def test_loss_in_a_loop():
    """Where the condition is the same in all steps, the branches are computed once; else a step has no loss."""
    branch = {**labelled("ce"), "from": "data:source"}
    unit = {"output": {"class": "cond", "condition": "base:c", "true_layer": branch, "false_layer": TANH}}
    unit["output"]["false_layer"] = {**TANH, "from": "data:source"}
    layers = network(TANH, TANH, both={"class": "rec", "from": "data", "unit": unit})
    layers["output"] = {"class": "copy", "from": "both"}
    net = net_of(layers, train=True)
    expected = cross_entropy(net, "both/rec/output/s")[0]
    np.testing.assert_allclose(net.run(feed()).losses["both/output/s"], expected, rtol=1e-5)
    assert "both/rec/output/s/W" not in net_of(layers).params  # losses in loops exist in training only
    unit["output"]["true_layer"] = {**branch, "from": ["data:source", "prev:output"]}
    with pytest.raises(ConfigError, match="true_layer: layer 'both/output/output/s' has a loss"):
        net_of(layers, train=True)


# --- states in the step of a loop ---


def by_step(true, false, **more):
    """Return a loop in which each step decides by its frame."""
    return {
        "loop": {
            "class": "rec",
            "from": "data",
            "unit": {
                "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "F"], "from": "data:source"},
                "c": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"},
                "output": {"class": "cond", "condition": "c", "true_layer": true, "false_layer": false},
                **more,
            },
        },
        "output": {"class": "copy", "from": "loop"},
    }


@pytest.mark.parametrize("moved", [True, False])
def test_states_of_both_branches(moved):
    """A state stays as it is in the steps of the other branch."""
    more = {} if moved else {"back": {"class": "copy", "from": "prev:output", "is_output_layer": True}}
    false = {"class": "rnn_cell", "unit": "basicrnn", "n_out": 3, "from": "data:source"}
    net = net_of(by_step({"class": "cumsum", "from": "data:source"}, false, **more))
    params = {n: v.numpy() for n, v in net.params.items()}
    (kernel,), (bias,) = ([v for n, v in params.items() if n.endswith(end)] for end in ("kernel", "bias"))
    data = feed()["data"]
    data[:, 1] = -data[:, 1]
    arrays = {**feed(), "data": data}
    out = net.run(arrays).layers["output"].value
    total, h, ways = np.zeros([3, 3]), np.zeros([3, 3]), set()
    for t in range(4):
        way = data[:, t].sum() > 0
        ways.add(way)
        if way:
            total = total + data[:, t]
        else:
            h = np.tanh(np.concatenate([data[:, t], h], axis=1) @ kernel + bias)
        np.testing.assert_allclose(out[:, t], total if way else h, rtol=1e-4, atol=1e-5)
    assert len(ways) == 2


@pytest.mark.slow
def test_gradients_through_states():
    """As without `cond`, if one branch is always the one."""
    cell = {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": ["data:source", "prev:output"]}
    layers = by_step({"class": "copy", "from": "data:source"}, cell)
    layers["loop"]["unit"]["c"]["value"] = 1e6
    layers["loss"] = {"class": "eval", "eval": "source(0) ** 2", "from": "output", "loss": "as_is"}
    plain = {**layers, "loop": {**layers["loop"], "unit": {"output": cell}}}
    nets = [net_of(n, train=True) for n in (layers, plain)]
    nets[0].set_param_values(nets[1].get_param_values())
    (mine, expected) = (net.run(feed(), with_grad=True) for net in nets)
    np.testing.assert_allclose(mine.total_loss, expected.total_loss, rtol=1e-5)
    for name, grad in expected.grads.items():
        np.testing.assert_allclose(mine.grads[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_states_follow_the_hypotheses_of_a_search():
    """As without `cond`, if one branch is always the one."""
    cell = {"class": "rnn_cell", "unit": "lstm", "n_out": 4, "from": "prev:output"}
    cond = {"class": "cond", "condition": "base:yes", "true_layer": cell}
    cond["false_layer"] = {"class": "linear", "activation": "tanh", "n_out": 4, "from": "prev:output"}
    yes = {"class": "constant", "value": True}
    found = []
    for layer in (cell, cond):
        net = search_net(
            {**frame_loop(layers={"emb": layer}), "yes": yes, "output": {"class": "decide", "from": "loop"}}
        )
        rng = np.random.default_rng(5)
        for name in sorted(net.params):
            if "rec/emb/W" not in name and "rec/emb/b" not in name:
                net.set_param_values({name: rng.normal(size=net.params[name].shape)})
        found.append(hypotheses(net.run(feed(), fetch=["loop"]).layers["loop"]))
    for mine, expected in zip(*found):
        assert [labels for _, labels in mine] == [labels for _, labels in expected]
        np.testing.assert_allclose([s for s, _ in mine], [s for s, _ in expected], rtol=1e-5)


def test_previous_step_of_a_part():
    inner = {"a": {"class": "combine", "kind": "add", "from": ["data", "base:prev:output/a"], "is_output_layer": True}}
    branches = [
        {
            "class": "subnetwork",
            "from": "data:source",
            "subnetwork": {**inner, "output": {"class": "copy", "from": "a"}},
        }
        for _ in range(2)
    ]
    out = net_of(by_step(*branches)).run(feed()).layers["output"].value
    mask = np.arange(4) < LENS[:, None]
    np.testing.assert_allclose(out[mask], feed()["data"].cumsum(axis=1)[mask], rtol=1e-5)
    inner["a"]["from"] = ["data", "prev:a"]
    with pytest.raises(ConfigError, match="Name a layer of the loop instead"):
        net_of(by_step(*branches))


def test_a_growing_history_is_refused():
    attention = {"class": "self_attention", "num_heads": 1, "total_key_dim": 3, "n_out": 3, "attention_left_only": True}
    layers = by_step({"class": "copy", "from": "data:source"}, {**attention, "from": "prev:output"})
    with pytest.raises(ConfigError, match="has a history that grows"):
        net_of(layers)
