"""Parts of the unit of `masked_computation`, used outside of it: held as if they were its output."""

import re

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import ConfigError
from tests.layers.nets import config_of, feed, net_of, template
from tests.layers.rec.test_masked_computation import LINEAR, LSTM, MASK, NEVER, loop, outside, results, valid

LAYERS = {
    "h": {**LINEAR, "from": "data"},
    "sum": {"class": "cumsum", "from": "data", "initial_output": 2},
    "parts": {"class": "split", "from": "h", "size_splits": [1, 2]},
    "cell": {**LSTM, "from": "h"},
    "ones": {**LSTM, "from": "h", "initial_state": "ones"},
    "learned": {**LINEAR, "from": "data", "initial_output": "var"},
    "zeros": {**LINEAR, "from": "cell", "initial_output": "apply(0)"},
    "inner": {
        "class": "subnetwork",
        "from": "h",
        "subnetwork": {
            "x": {**LINEAR, "from": "data", "initial_output": 0.5},
            "output": {"class": "copy", "from": "x"},
        },
    },
}
#: Of parts whose initial output is not 0.
INITIAL = {"sum": 2, "zeros": "apply(0)", "learned": 0, "inner/x": 0.5}
PARTS = ["sum", "parts/1", "cell", "learned", "zeros", "inner/x"]


def unit(output, **options):
    """Return a subnetwork whose output is a copy of one of its layers."""
    return {
        "class": "subnetwork",
        "from": "data",
        "subnetwork": {**LAYERS, "output": {"class": "copy", "from": output}},
        **options,
    }


def assert_same(got, expected):
    for a, b in zip(valid(got), valid(expected)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def network_of_part(part, **options):
    return loop(unit("sum"), more={"output": {"class": "copy", "from": "mc/" + part}}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
def test_is_held_as_the_output_is(moved):
    """Against one layer for each part, whose output is a copy of the part."""
    all_parts = {"output": {"class": "copy", "from": ["mc/" + part for part in PARTS]}}
    got, grads, net = results(loop(unit("sum"), moved=moved, more=all_parts), with_grad=True)
    masked = {"class": "masked_computation", "mask": "m", "from": "data:source"}
    layers = {
        "mc%d" % i: {**masked, "unit": unit(part, initial_output=INITIAL.get(part, 0))} for i, part in enumerate(PARTS)
    }
    other = net_of(loop(LINEAR, moved=moved, more={**layers, "output": {"class": "copy", "from": list(layers)}}))
    given = {name: re.sub(r"/mc\d/", "/mc/", name) for name in other.params}
    params = net.get_param_values()
    other.set_param_values({name: params[own] for name, own in given.items()})
    out = other.run(feed(), with_grad=True)
    assert_same(got, np.moveaxis(out.layers["output"].value, 0, 1))
    for name, grad in grads.items():
        expected = sum(g for other_name, g in out.grads.items() if given[other_name] == name)
        np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("moved", [False, True])
def test_before_the_first_selected_frame(moved):
    firsts = {"ones": [1.0] * 3, "learned": [0.25] * 3, "inner/x": [0.5] * 3, "sum": [2] * 3, "parts/0": [0]}
    output = {"class": "copy", "from": ["mc/" + part for part in firsts]}
    net = net_of(loop(unit("sum"), moved=moved, mask=NEVER, more={"output": output}))
    for name, var in net.params.items():
        if name.endswith("init_learned_var"):
            var.assign(np.full(var.shape, 0.25))
    for frames in valid(np.moveaxis(net.run(feed()).layers["output"].value, 0, 1)):
        np.testing.assert_array_equal(frames, np.tile(np.concatenate(list(firsts.values())), (len(frames), 1)))


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("feedback", [False, True])
def test_several_parts_and_their_previous_values(moved, feedback):
    """With feedback the unit is computed in each step, and its parts are used behind the loop."""
    parts = ["mc/cell", "mc/inner", "prev:mc/cell", "prev:mc/inner/x"]
    given = {"sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": ["data:source", "prev:mc"]}}
    mask = {**MASK, **given} if feedback else MASK

    def values_of(*names):
        more = {"output": {"class": "combine", "kind": "add", "from": list(names)}}
        net = net_of(loop(unit("h"), moved=moved, mask=mask, more=more))
        net.set_param_values({name: values for name, values in params.items() if name in net.params})
        return np.moveaxis(net.run(feed()).layers["output"].value, 0, 1)

    params = net_of(loop(unit("h"), moved=moved, mask=mask, more={"output": {"class": "copy", "from": parts}}))
    params = params.get_param_values()
    cell, x = values_of("mc/cell"), values_of("mc/inner/x")
    before = [np.concatenate([np.full_like(v[:1], first), v[:-1]]) for v, first in ((cell, 0), (x, 0.5))]
    assert_same(values_of(*parts), cell + values_of("mc/inner") + before[0] + before[1])


@pytest.mark.parametrize("part", ["parts/0", "cell"])
def test_outside_of_loops(part):
    network = outside(unit("sum"))
    selected = next(name for name, layer in network.items() if layer["class"] == "masked_computation")
    unmask = next(layer for layer in network.values() if layer["class"] == "unmask")
    unmask["from"] = "%s/%s" % (selected, part)
    got = net_of(network)
    expected = net_of(network_of_part(part))
    expected.set_param_values({"loop/rec/" + name: v for name, v in got.get_param_values().items()})
    a, b = (np.moveaxis(net.run(feed()).layers["output"].value, 0, 1) for net in (got, expected))
    assert_same(a, b)


@pytest.mark.slow
def test_in_search():
    """The values held for a hypothesis go with it."""

    def network(source, output):
        return {
            "output": {
                "class": "rec",
                "from": "data",
                "target": "labels",
                "unit": {
                    "m": {"class": "compare", "kind": "not_equal", "value": 0, "from": "prev:output"},
                    "emb": {**LINEAR, "from": "prev:output"},
                    "mc": {"class": "masked_computation", "mask": "m", "from": "emb", "unit": unit(output)},
                    "prob": {"class": "softmax", "target": "labels", "from": ["data:source", source]},
                    "output": {"class": "choice", "target": "labels", "beam_size": 3, "from": "prob",
                               "initial_output": 0},
                },
            }
        }  # fmt: skip

    nets = [
        Network.from_config(config_of(network(*given)), search=True) for given in (("mc/cell", "h"), ("mc", "cell"))
    ]
    rng = np.random.default_rng(5)
    params = {name: rng.normal(size=p.shape).astype("float32") for name, p in nets[0].params.items()}
    for net in nets:
        net.set_param_values({name: params[name] for name in net.params})
    got, expected = (net.run(feed()).layers["output"] for net in nets)
    assert len(set(map(tuple, got.value.reshape(len(got.value), -1)))) > 3
    np.testing.assert_array_equal(got.value, expected.value)
    np.testing.assert_allclose(got.beam_scores, expected.beam_scores, rtol=1e-5)


def test_there_is_no_such_part():
    with pytest.raises(ConfigError, match="layer 'loop/mc' has no part 'hh'"):
        template(network_of_part("hh"))
