"""`cond` as the branch or the condition of a `cond`, and as the unit of other layers."""

import numpy as np
import pytest

from tests.layers.nets import LENS, feed, net_of
from tests.layers.rec.searching import frame_loop, free_loop, search_net

#: A condition that is the same for all sequences; it refers to a layer beside the outermost `cond`.
CHOICES = {"true": {"class": "compare", "kind": "less", "value": 1e6, "from": "sum"},
           "false": {"class": "compare", "kind": "less", "value": -1e6, "from": "sum"}}  # fmt: skip


def branch(number, *, loss):
    layers = {
        "a": {"class": "linear", "activation": None, "n_out": 4, "from": "data", "is_output_layer": True},
        "output": {"class": "eval", "eval": "source(0) * %d." % number, "from": "a"},
    }
    if loss:
        layers["loss"] = {"class": "eval", "eval": "source(0) * %d." % number, "from": "output", "loss": "as_is"}
    return {"class": "subnetwork", "from": "x", "subnetwork": layers}


def nested(choices, number=1, *, loss=False):
    """Return a `cond` that takes the branch i (from 1) for the first true choices[i - 1], else the last."""
    if not choices:
        return branch(number, loss=loss)
    deeper = nested(choices[1:], number + 1, loss=loss)
    condition = CHOICES[choices[0]]
    return {"class": "cond", "from": [], "condition": condition, "true_layer": branch(number, loss=loss),
            "false_layer": deeper}  # fmt: skip


OUTSIDE = {
    "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "data"},
    "x": {"class": "eval", "eval": "source(0) + 1.", "from": "data"},
}
WAYS = [(["true"], 1), (["true", "true"], 1), (["false", "true"], 2), (["false", "false", "true"], 3),
        (["false", "false", "false"], 4)]  # fmt: skip


def expected(net, number, prefix):
    params = net.get_param_values()
    a = (feed()["data"] + 1) @ params[prefix + "a/W"] + params[prefix + "a/b"]
    return a, a * number


@pytest.mark.sampled
@pytest.mark.parametrize("choices, number", WAYS)
@pytest.mark.parametrize("loss", [False, True])
def test_values_losses_and_gradients(choices, number, loss):
    layers = {"c": nested(choices, loss=loss), "a": {"class": "copy", "from": "c/a", "is_output_layer": True}}
    net = net_of({**OUTSIDE, **layers, "output": {"class": "copy", "from": "c"}})
    assert sorted(net.params) == ["c/a/W", "c/a/b"]
    result = net.run(feed(), with_grad=loss)
    a, output = expected(net, number, "c/")
    np.testing.assert_allclose(result.layers["a"].value, a, rtol=1e-5)
    np.testing.assert_allclose(result.layers["output"].value, output, rtol=1e-5)
    if loss:
        frames = np.arange(a.shape[1])[None] < LENS[:, None]
        np.testing.assert_allclose(result.losses["c/loss"], (output * number)[frames].sum(), rtol=1e-4)
        np.testing.assert_allclose(result.grads["c/a/b"], [number**2 * LENS.sum()] * 4, rtol=1e-5)


@pytest.mark.parametrize("choices, number", WAYS[2:4])
def test_in_a_subnetwork(choices, number):
    inner = {**OUTSIDE, "output": nested(choices)}
    net = net_of({"output": {"class": "subnetwork", "from": "data", "subnetwork": inner}})
    value = net.run(feed()).layers["output"].value
    prefix = next(name for name in net.params if name.endswith("a/W"))[: -len("a/W")]
    assert prefix == "output/output/"
    np.testing.assert_allclose(value, expected(net, number, prefix)[1], rtol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("choices, number", WAYS[2:4])
@pytest.mark.parametrize("moved", [False, True])
def test_in_a_loop(choices, number, moved):
    unit = {
        "sum": {"class": "copy", "from": "base:sum"},
        "x": {"class": "eval", "eval": "source(0) + 1.", "from": "data:source"},
        "c": nested(choices),
        "output": {"class": "combine", "kind": "add", "from": ["c", "prev:output"]},
    }
    loop = {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": moved}
    net = net_of({**OUTSIDE, "output": loop})
    assert sorted(net.params) == ["output/rec/c/a/W", "output/rec/c/a/b"]
    frames = (np.arange(LENS.max())[None] < LENS[:, None])[..., None]
    value = net.run(feed()).layers["output"].value
    np.testing.assert_allclose(
        value * frames, expected(net, number, "output/rec/c/")[1].cumsum(axis=1) * frames, rtol=1e-4
    )


@pytest.mark.parametrize("is_true", [False, True])
def test_as_the_condition(is_true):
    true, false = CHOICES["true" if is_true else "false"], CHOICES["false" if is_true else "true"]
    inner = {"class": "cond", "from": [], "condition": CHOICES["false"], "true_layer": false, "false_layer": true}
    first, second = branch(1, loss=False), branch(2, loss=False)
    layers = {"class": "cond", "from": [], "condition": inner, "true_layer": first, "false_layer": second}
    net = net_of({**OUTSIDE, "output": layers})
    value = net.run(feed()).layers["output"].value
    np.testing.assert_allclose(value, expected(net, 1 if is_true else 2, "output/")[1], rtol=1e-5)


def test_masked_computation_in_a_branch():
    masked = {"class": "masked_computation", "from": "x", "mask": "mask",
              "unit": {"class": "eval", "eval": "source(0) * 2. + source(1)", "from": ["data", "sum"]}}  # fmt: skip
    layers = {
        **OUTSIDE,
        "frames": {"class": "reduce", "mode": "sum", "axis": "F", "from": "data"},
        "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "frames"},
    }
    whole = {"class": "cond", "from": [], "condition": CHOICES["true"], "true_layer": masked, "false_layer": masked}
    plain = net_of({**layers, "output": masked})
    net = net_of({**layers, "output": whole})
    np.testing.assert_allclose(
        net.run(feed()).layers["output"].value, plain.run(feed()).layers["output"].value, rtol=1e-5
    )


@pytest.mark.parametrize("choices, number", WAYS[1:4])
@pytest.mark.parametrize("loop", [free_loop, frame_loop])
def test_in_a_search(choices, number, loop):
    """In each step of a search, and behind it, a `cond` of hypotheses is the branch that it takes."""

    def network(layer):
        inside = {"sum": {"class": "copy", "from": "base:sum"}, "x": {"class": "copy", "from": "emb"}, "c": layer}
        network = loop(layers={**inside, "p": {"class": "softmax", "n_out": 5, "from": ["c", "prev:c"]}})
        behind = {
            "x": {"class": "linear", "activation": None, "n_out": 3, "from": "loop"},
            "after": {**layer, "is_output_layer": True},
        }
        return {"sum": OUTSIDE["sum"], **network, **behind, "output": {"class": "copy", "from": "loop"}}

    def found(layer):
        result = search_net(network(layer), seed=2).run(feed()).layers
        return result["output"], result["after"]

    (hyps, after), (wanted, wanted_after) = found(nested(choices)), found(branch(number, loss=False))
    np.testing.assert_array_equal(hyps.value, wanted.value)
    np.testing.assert_allclose(hyps.beam_scores, wanted.beam_scores, rtol=1e-5)
    np.testing.assert_allclose(after.value, wanted_after.value, rtol=1e-5)
    assert after.axes == wanted_after.axes and len(after.value) == 9
