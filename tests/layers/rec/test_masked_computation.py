"""`masked_computation` and `unmask`: the same values in the loop, before it and outside of loops, and against numpy."""

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.layers.nets import LENS, config_of, feed, net_of, run, template

MASK = {
    "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data:source"},
    "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"},
}
NEVER = {**MASK, "m": {"class": "compare", "kind": "greater", "value": 1e6, "from": "sum"}}
LINEAR = {"class": "linear", "activation": "tanh", "n_out": 3}
LSTM = {"class": "rec", "unit": "nativelstm2", "n_out": 3}
SUBNET = {
    "class": "subnetwork",
    "from": "data",
    "subnetwork": {
        "h": {**LINEAR, "from": "data"},
        "both": {"class": "combine", "kind": "add", "from": ["h", "base:other"]},
        "cell": {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": "both"},
        "output": {**LINEAR, "from": ["cell", "base:base:outside"]},
    },
}


def loop(unit, *, moved=True, mask=MASK, feedback=False, more=None, **options):
    """Return a network with a loop whose layer "mc" is masked."""
    masked = {"class": "masked_computation", "mask": "m", "from": "data:source", "unit": unit, **options}
    last = [{"class": "copy", "from": "mc"}, {**LINEAR, "from": ["mc", "prev:output"]}][feedback]
    return {
        "outside": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"},
        "loop": {
            "class": "rec",
            "from": "data",
            "optimize_move_layers_out": moved,
            "unit": {
                **mask,
                "other": {**LINEAR, "from": "data:source"},
                "mc": masked,
                "output": last,
                **(more or {}),
            },
        },
        "output": {"class": "copy", "from": "loop"},
        "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "loop", "loss": "as_is"},
    }


def results(network, arrays=None, with_grad=False, **config):
    """Return (output [time, batch, feature] up to the lengths, gradients)."""
    net = net_of(network, **config)
    out = net.run(feed() if arrays is None else arrays, with_grad=with_grad)
    value = out.layers["output"].value  # batch first
    return np.moveaxis(value, 0, 1), out.grads if with_grad else {}, net


def valid(value, lens=LENS):
    return [value[: lens[b], b] for b in range(len(lens))]


def numpy_params(net):
    return {name: var.numpy() for name, var in net.params.items()}


UNITS = {
    "linear": LINEAR,
    "lstm": LSTM,
    "gru": {"class": "rec", "unit": "gru", "n_out": 3},
    "initial state": {**LSTM, "initial_state": "ones"},
    "variable state": {**LSTM, "initial_state": "var"},
    "subnetwork": SUBNET,
    "cumsum": {"class": "cumsum"},
    "layer outside": {**LINEAR, "from": ["data", "other"]},
    "masked": {"class": "copy", "from": ["data", "data"]},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit,options",
    [
        pytest.param(
            unit, {"feedback": i % 2 == 0}, marks=[pytest.mark.long] if unit in ("gru", "initial state") else []
        )
        for i, unit in enumerate(sorted(UNITS))
    ]
    + [("lstm", {"feedback": True, "mask": NEVER}), ("initial state", {"mask": NEVER})],
)
def test_in_loop_as_for_all_steps_at_once(unit, options):
    got, grads, net = results(loop(UNITS[unit], **options), with_grad=True)
    expected, expected_grads, other = results(loop(UNITS[unit], **options, moved=False), with_grad=True)
    assert {n: v.shape for n, v in net.params.items()} == {n: v.shape for n, v in other.params.items()}
    for a, b in zip(valid(got), valid(expected)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert set(grads) == set(expected_grads)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected_grads[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("initial,first", [(None, 0.0), ("ones", 1.0), (0.5, 0.5)])
def test_keeps_the_last_value(moved, initial, first):
    options = {} if initial is None else {"initial_output": initial}
    got, _, net = results(loop(LINEAR, moved=moved, **options))
    params = numpy_params(net)
    data = feed()["data"]
    for b, length in enumerate(LENS):
        last = np.full([3], first)
        for t in range(length):
            if data[b, t].sum() > 0:
                last = np.tanh(data[b, t] @ params["loop/rec/mc/W"] + params["loop/rec/mc/b"])
            np.testing.assert_allclose(got[t, b], last, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("initial", ["var", "base:outside"])
def test_initial_output_that_is_learned(moved, initial):
    got, grads, net = results(loop(LINEAR, moved=moved, initial_output=initial, mask=NEVER), with_grad=True)
    if initial == "var":
        assert net.params["loop/rec/mc/init_mc_var"].shape == (3,)
        assert set(grads) >= {"loop/rec/mc/init_mc_var"}
        expected = np.zeros([3, 3])
    else:
        data = feed()["data"]
        expected = np.stack([data[b, :length].mean(axis=0) for b, length in enumerate(LENS)])
    for b, frames in enumerate(valid(got)):
        np.testing.assert_allclose(frames, np.tile(expected[b], (LENS[b], 1)), rtol=1e-5)


@pytest.mark.parametrize("moved", [False, True])
def test_prev_is_the_kept_value(moved):
    more = {"output": {"class": "copy", "from": "prev:mc"}}
    got, _, _ = results(loop(LSTM, moved=moved, more=more, initial_output=0.25))
    now, _, _ = results(loop(LSTM, moved=moved, initial_output=0.25))
    for a, b in zip(valid(got), valid(now)):
        np.testing.assert_allclose(a[0], 0.25)
        np.testing.assert_allclose(a[1:], b[:-1], rtol=1e-5)


def test_mask_of_the_loop_itself():
    """The step decides by its own past, and the source of the layer is its own past too."""
    network = loop(
        LINEAR,
        mask={
            "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "prev:mc"},
            "m": {"class": "compare", "kind": "less", "value": 0.1, "from": "sum"},
        },
    )
    network["loop"]["unit"]["mc"]["from"] = "in"
    network["loop"]["unit"]["in"] = {"class": "copy", "from": ["data:source", "prev:mc"]}
    got, _, net = results(network)
    params = numpy_params(net)
    data = feed()["data"]
    for b, length in enumerate(LENS):
        last = np.zeros([3])
        for t in range(length):
            if last.sum() < 0.1:
                x = np.concatenate([data[b, t], last])
                last = np.tanh(x @ params["loop/rec/mc/W"] + params["loop/rec/mc/b"])
            np.testing.assert_allclose(got[t, b], last, rtol=1e-5, atol=1e-6)


def outside(unit, **unmask):
    return {
        "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
        "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"},
        "mc": {"class": "masked_computation", "mask": "m", "from": "data", "unit": unit, "is_output_layer": True},
        "output": {"class": "unmask", "mask": "m", "from": "mc", **unmask},
    }


def test_outside_of_loops():
    net = net_of(outside(LINEAR))
    out = net.run(feed()).layers
    params, data = numpy_params(net), feed()["data"]
    packed = out["mc"]
    for b, length in enumerate(LENS):
        frames = [t for t in range(length) if data[b, t].sum() > 0]
        expected = np.tanh(data[b, frames] @ params["mc/W"] + params["mc/b"])
        assert packed.sizes[1][b] == len(frames)
        np.testing.assert_allclose(packed.value[b, : len(frames)], expected, rtol=1e-5)
        for t in range(length):
            count = sum(f <= t for f in frames)
            want = expected[count - 1] if count else np.zeros([3])
            np.testing.assert_allclose(out["output"].value[b, t], want, rtol=1e-5)


@pytest.mark.parametrize("unit", ["linear", "lstm", "gru", "initial state"])
def test_unmask_outside_as_in_a_loop(unit):
    expected, _, other = results(loop(UNITS[unit]))
    net = net_of(outside(UNITS[unit]))
    for name, var in net.params.items():
        var.assign(other.params["loop/rec/" + name])
    got = np.moveaxis(net.run(feed()).layers["output"].value, 0, 1)
    for a, b in zip(valid(got), valid(expected)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("skip,first", [(False, 0.0), (True, None)])
def test_skip_initial(skip, first):
    arrays = feed()
    arrays["data"][0] = [[-1, -1, -1], [1, 2, 3], [-1, -1, -1], [3, 2, 1]]
    out = net_of(outside({"class": "copy"}, skip_initial=skip)).run(arrays).layers["output"].value
    np.testing.assert_allclose(out[0, 0], [1, 2, 3] if skip else [0, 0, 0])
    np.testing.assert_allclose(out[0, 1:], [[1, 2, 3], [1, 2, 3], [3, 2, 1]])


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("task_in_loop", [False, True])
def test_masked_from(moved, task_in_loop):
    """Where all steps are known, the picked frames may be given; in a step source and mask are used."""
    network = {
        "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
        "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"},
        "frames": {"class": "masked_computation", "mask": "m", "from": "data", "unit": {"class": "copy"}},
        **loop(LSTM, masked_from="base:frames", moved=moved),
    }
    unit = network["loop"]["unit"]
    unit["output"] = {"class": "unmask", "mask": "m", "from": "mc"}
    if task_in_loop:
        unit["output"] = {**LINEAR, "from": ["um", "prev:output"]}
        unit["um"] = {"class": "unmask", "mask": "m2", "from": "mc"}
        unit["true"] = {"class": "compare", "kind": "less", "value": 1e6, "from": "red"}
        unit["red"] = {"class": "reduce", "mode": "sum", "axes": "F", "from": "prev:output"}
        unit["m2"] = {"class": "combine", "kind": "logical_and", "from": ["m", "true"]}
    got, grads, _ = results(network, with_grad=True)
    plain = {**network, "loop": {**network["loop"], "unit": {**unit, "mc": {**unit["mc"], "masked_from": None}}}}
    expected, expected_grads, _ = results(plain, with_grad=True)
    for a, b in zip(valid(got), valid(expected)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected_grads[name], rtol=1e-4, atol=1e-5)


def test_states_inside_a_subnetwork_of_the_loop():
    unit = {
        **MASK,
        "sub": {
            "class": "subnetwork",
            "from": "data:source",
            "subnetwork": {
                "output": {
                    "class": "masked_computation",
                    "mask": "base:m",
                    "from": "data",
                    "unit": {
                        "class": "subnetwork",
                        "from": "data",
                        "subnetwork": {"output": {**LINEAR, "from": ["data", "base:base:feedback"]}},
                    },
                }
            },
        },
        "feedback": {"class": "copy", "from": "prev:output"},
        "output": {"class": "copy", "from": "sub"},
    }
    network = {"loop": {"class": "rec", "from": "data", "unit": unit}, "output": {"class": "copy", "from": "loop"}}
    got, _, net = results(network)
    params, data = numpy_params(net), feed()["data"]
    assert {n: v.shape for n, v in params.items()} == {
        "loop/rec/sub/output/output/W": (6, 3), "loop/rec/sub/output/output/b": (3,)
    }  # fmt: skip
    for b, length in enumerate(LENS):
        last = np.zeros([3])
        for t in range(length):
            if data[b, t].sum() > 0:
                last = np.tanh(np.concatenate([data[b, t], last]) @ params["loop/rec/sub/output/output/W"])
            np.testing.assert_allclose(got[t, b], last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("moved", [False, True])
def test_sparse_source_and_single_sequence(moved):
    network = loop(LINEAR, moved=moved)
    network["emb"] = {"class": "copy", "from": "data:labels"}
    network["loop"]["unit"]["mc"]["from"] = "label"
    network["loop"]["unit"]["label"] = {"class": "rec_unstack", "from": "base:emb"}
    arrays = {k: v[:1] for k, v in feed().items()}
    got, _, net = results(network, arrays)
    params = numpy_params(net)
    last = np.zeros([3])
    for t in range(LENS[0]):
        if arrays["data"][0, t].sum() > 0:
            last = np.tanh(params["loop/rec/mc/W"][arrays["labels"][0, t]] + params["loop/rec/mc/b"])
        np.testing.assert_allclose(got[t, 0], last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("moved", [False, True])
def test_unit_never_sees_labels_that_are_not_picked(moved):
    """As the embedding in a transducer, which does not know the blank."""
    network = loop(LINEAR, moved=moved, mask={"m": {"class": "compare", "kind": "less", "value": 2, "from": "label"}})
    network["small"] = {"class": "reinterpret_data", "set_sparse_dim": 2, "from": "data:labels"}
    network["loop"]["unit"]["label"] = {"class": "rec_unstack", "from": "base:small"}
    network["loop"]["unit"]["mc"]["from"] = "label"
    labels = np.array([[4, 1, 3, 0], [3, 3, 4, 4], [1, 4, 4, 4]])
    got, _, net = results(network, feed(labels=labels))
    params = numpy_params(net)
    known = np.tanh(params["loop/rec/mc/W"] + params["loop/rec/mc/b"])
    none = np.zeros([3])
    expected = [[none, known[1], known[1], known[0]], [none, none], [known[1]] * 3]
    for frames, values in zip(valid(got), expected):
        np.testing.assert_allclose(frames, values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "change,match",
    [
        ({"mask": "data:source"}, "must be bool"),
        ({"mask": None}, "option 'mask' must name a layer"),
        ({"unit": {"n_out": 3}}, "'unit' must be a layer such as"),
        ({"unit": {"class": "linaer"}}, "linear"),
        ({"from": ["data:source", "other"]}, "exactly one source"),
        ({"initial_output": [1]}, "'initial_output' must be a layer, 'zeros'"),
        ({"unit": {**LINEAR, "from": "othre"}}, "other"),
    ],
)
def test_messages(change, match):
    network = loop(LINEAR)
    network["loop"]["unit"]["mc"].update(change)
    with pytest.raises(ConfigError, match=match) as info:
        template(network)
    assert "loop/mc" in str(info.value)


@pytest.mark.parametrize("moved", [False, True])
def test_history_cannot_be_kept(moved):
    with pytest.raises(ConfigError, match="which grows from step to step"):
        template(loop({"class": "cum_concat"}, moved=moved))


@pytest.mark.slow
def test_behind_a_search():
    """Every hypothesis has a number of picked labels of its own."""
    network = {
        "loop": {
            "class": "rec",
            "from": "data",
            "target": "labels",
            "include_eos": True,
            "is_output_layer": True,
            "unit": {
                "emb": {**LINEAR, "from": "prev:output"},
                "prob": {"class": "softmax", "target": "labels", "from": ["data:source", "emb"]},
                "output": {"class": "choice", "target": "labels", "beam_size": 4, "from": "prob", "initial_output": 0},
            },
        },
        "m": {"class": "compare", "kind": "not_equal", "value": 2, "from": "loop"},
        "mc": {"class": "masked_computation", "mask": "m", "from": "loop", "unit": {"class": "copy"}},
        "removed": {"class": "remove", "symbol": 2, "from": "loop"},
        "best": {"class": "decide", "from": "removed", "is_output_layer": True},
        "output": {"class": "decide", "from": "mc"},
    }
    net = Network.from_config(config_of(network), search=True)
    rng = np.random.default_rng(1)
    net.set_param_values({name: rng.normal(size=p.shape).astype("float32") for name, p in net.params.items()})
    layers = net.run(feed()).layers
    everything = layers["loop"].value.reshape(3, 4, -1)[:, 0]
    expected = [[label for label in row[:n] if label != 2] for row, n in zip(everything, LENS)]
    assert len({len(row) for row in expected} | set(LENS)) > 3, "labels are left out"
    for name in ("output", "best"):
        assert [list(r[:n]) for r, n in zip(layers[name].value, layers[name].sizes[1])] == expected


def test_messages_outside():
    network = outside(LINEAR)
    network["mc"]["from"] = "sum"
    network["sum"]["axes"] = "T"
    with pytest.raises(ConfigError, match="no time axis with frames to select"):
        template(network)
    network = outside(LINEAR)
    network["m"]["from"] = "data"
    with pytest.raises(ConfigError, match="must have one value for each frame"):
        template(network)


def test_masked_from_needs_neither_source_nor_mask():
    """As in training over all alignments: the frames are given, and the loop runs over other ones."""
    unit = {
        "am": {"class": "copy", "from": "data:source"},
        "lm": {
            "class": "masked_computation",
            "mask": "prev:emit",
            "from": "prev:output",
            "masked_from": "base:labels1",
            "unit": {
                "class": "subnetwork",
                "subnetwork": {"e": {**LINEAR, "from": "data"}, "output": {**LSTM, "from": "e"}},
            },
        },
        "joint": {"class": "combine", "kind": "add", "from": ["am", "lm"], "allow_broadcast_all_sources": True},
        "prob": {"class": "softmax", "n_out": 6, "from": "joint", "is_output_layer": True},
        "output": {"class": "choice", "from": "prob", "target": "labels", "beam_size": 3, "initial_output": 0},
        "emit": {"class": "compare", "kind": "not_equal", "value": 5, "from": "output", "initial_output": True},
    }
    network = {
        "labels1": {"class": "prefix_in_time", "from": "data:labels", "prefix": 0},
        "loop": {"class": "rec", "from": "data:other", "target": "labels", "unit": unit},
        "output": {"class": "copy", "from": "loop/prob"},
    }
    arrays = feed(other=np.random.default_rng(5).normal(size=(3, 7, 3)))
    arrays["other/size0"] = np.array([7, 6, 5], "int32")
    out = net_of(network).run(arrays).layers["output"]
    assert out.value.shape == (3, 7, 5, 6)
    assert out.sizes[1].tolist() == [7, 6, 5]
    assert out.sizes[2].tolist() == (LENS + 1).tolist()


@pytest.mark.parametrize("place", ["in the loop", "moved", "outside"])
def test_without_source_the_unit_takes_data_of_the_network_around(place):
    cell = {"class": "rec", "unit": "cumsum", "n_out": 3, "from": "data"}
    unit = {"class": "subnetwork", "subnetwork": {"sum": cell, "output": {"class": "copy", "from": "sum"}}}
    values = []
    for source in ({}, {"from": "data"}):
        masked = {"class": "masked_computation", "mask": "m", "unit": unit, **source}
        if place == "outside":
            network = {**MASK, "x": masked, "output": {"class": "unmask", "from": "x", "mask": "m"}}
            network["sum"] = {**network["sum"], "from": "data"}
        else:
            step = {**MASK, "x": masked, "output": {"class": "copy", "from": "x"}}
            move = {"optimize_move_layers_out": place == "moved"}
            network = {"output": {"class": "rec", "from": "data", "unit": step, **move}}
        values.append(run(network, behavior_version=12)["output"].value)
    np.testing.assert_array_equal(*values)
    assert abs(values[0]).max() > 0


def test_mask_of_labels_that_are_bool():
    time = SpatialDim("time")
    labels = {"dim": 2, "sparse": True, "dtype": "bool", "dim_tags": [batch_dim, time]}
    extern_data = {"data": {"dim_tags": [batch_dim, time, FeatureDim("f", 2)]}, "mask": labels}
    layer = {"class": "masked_computation", "from": "data", "mask": "data:mask", "unit": LINEAR}
    net = net_of({"output": layer}, extern_data=extern_data)
    arrays = {"data": np.ones([1, 3, 2], "float32"), "data/size0": [3]}
    result = net.run({**arrays, "mask": np.array([[True, False, True]]), "mask/size0": [3]}).layers["output"]
    assert result.value.shape == (1, 2, 3) and result.sizes[1].tolist() == [2]
