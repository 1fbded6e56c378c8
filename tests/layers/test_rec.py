"""`rec` and `get_last_hidden_state` through whole networks: parameters, initial states, axes, errors."""

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.ops.cells import unit_names
from returnn_tf.util.lazy_tf import tf

IN, N = 3, 4
EXTERN_DATA = {
    "data": {"dim": IN},
    "labels": {"dim": 5, "sparse": True},
    "ctx": {"shape": (N,), "time_dim_axis": None},
    "image": {"shape": (None, 2, IN), "dim": IN},
    "wide": {"dim": 4 * N},
    "more": {"dim": IN},
}
LENGTHS = [5, 3]


def make_net(network, train=False, **config):
    return Network.from_config(Config({"extern_data": EXTERN_DATA, "network": network, **config}), train=train)


def feed(seed=1):
    rng = np.random.RandomState(seed)
    lengths = np.array(LENGTHS, "int32")
    arrays = {
        "data": rng.normal(size=(2, 5, IN)),
        "labels": rng.randint(0, 5, (2, 5)),
        "ctx": rng.normal(size=(2, N)),
        "image": rng.normal(size=(2, 5, 2, IN)),
        "wide": rng.normal(size=(2, 5, 4 * N)),
    }
    sizes = {key + "/size0": lengths for key in arrays if key != "ctx"}
    return {**{k: v.astype("int32" if k == "labels" else "float32") for k, v in arrays.items()}, **sizes}


def rec(**options):
    return {"class": "rec", "unit": "lstm", "n_out": N, "from": "data", "is_output_layer": True, **options}


def shapes(net):
    return {name: tuple(var.shape) for name, var in net.params.items()}


def run(network, fetch=(), **config):
    return make_net(network, **config).run(feed(), fetch=fetch).layers


LSTM_SHAPES = {"W": (IN, 4 * N), "W_re": (N, 4 * N), "b": (4 * N,)}


@pytest.mark.parametrize(
    "options,expected",
    [
        ({}, {"output/rec/" + name: shape for name, shape in LSTM_SHAPES.items()}),
        ({"name_scope": "other"}, {"other/" + name: shape for name, shape in LSTM_SHAPES.items()}),
        ({"name_scope": ""}, LSTM_SHAPES),
        (
            {"unit": "StandardLSTM", "unit_opts": {"use_peepholes": True}},
            {
                "output/rec/lstm_cell/kernel": (IN + N, 4 * N),
                "output/rec/lstm_cell/bias": (4 * N,),
                **{"output/rec/lstm_cell/w_%s_diag" % gate: (N,) for gate in "ifo"},
            },
        ),
        ({"from": "wide", "input_projection": False}, {"output/rec/W_re": (N, 4 * N)}),
        (
            {"from": "labels", "initial_state": {"h": "var", "c": 1}},
            {
                "output/rec/W": (5, 4 * N),
                "output/rec/W_re": (N, 4 * N),
                "output/rec/b": (4 * N,),
                "output/rec/initial_h": (N,),
            },
        ),
    ],
    ids=str,
)
def test_parameters(options, expected):
    if "from" in options:
        options = {**options, "from": "data:" + options["from"]}
    assert shapes(make_net({"output": rec(**options)})) == expected


def test_initialisers():
    net = make_net({
        "output": rec(forward_weights_init=0.1, recurrent_weights_init="orthogonal", bias_init=0.5),
        "gru": rec(unit="gru"),
    })  # fmt: skip
    w, w_re, b = (net.params["output/rec/" + name].numpy() for name in ("W", "W_re", "b"))
    assert (w == np.float32(0.1)).all() and (b == 0.5).all()
    np.testing.assert_allclose(w_re @ w_re.T, np.eye(N), atol=1e-6)
    assert (net.params["gru/rec/gru_cell/gates/bias"].numpy() == 1).all()


#: Options of units whose default sizes are too large here.
UNIT_OPTS = {
    "gla": {"num_heads": 2},
    "mamba2": {"headdim": 4},
}


# "cumsum" has the size of its input, see test_units_of_today.py
@pytest.mark.parametrize("unit", sorted(set(unit_names()) - {"nativelstm2storestates", "cumsum"}))
def test_every_unit_by_name(unit):
    """Outputs of valid frames do not depend on padding, and those after the end are zero; a backward run differs."""
    opts = {"unit_opts": UNIT_OPTS[unit]} if unit in UNIT_OPTS else {}
    out = run({"output": rec(unit=unit, **opts), "bw": rec(unit=unit.upper() + "Cell", direction=-1, **opts)})
    for name in ("output", "bw"):
        layer = out[name]
        assert layer.axes == ("B", "T", "F") and layer.value.shape == (2, 5, N)
        np.testing.assert_array_equal(layer.sizes[1], LENGTHS)
        assert (layer.value[1, 3:] == 0).all() and (layer.value[1, :3] != 0).all()


@pytest.mark.parametrize("unit", ["gru", "basicrnn", "basiclstm", "standardlstm", "layernormvariantslstm"])
def test_activation_of_a_unit(unit):
    """It is a name or a function; None is the default."""
    forms = ("sin", tf.sin, None, "tanh")
    nets = [make_net({"output": rec(unit=unit, unit_opts={"activation": form})}) for form in forms]
    values = [net.run(feed()).layers["output"].value for net in nets]
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[2], values[3])
    assert abs(values[0] - values[2]).max() > 1e-3


@pytest.mark.parametrize("unit", ["lstm", "gru"])
def test_initial_state_continues_a_sequence(unit):
    """A layer that starts from the state of another one goes on where that one ended."""
    whole = make_net({"output": rec(unit=unit)})
    parts = make_net({
        "first": rec(unit=unit),
        "output": rec(unit=unit, initial_state="first", **{"from": "data:more"}),
    })  # fmt: skip
    params = whole.get_param_values()
    for name in ("first", "output"):
        parts.set_param_values({key.replace("output/", name + "/"): value for key, value in params.items()})
    data = feed()
    expected = whole.run(data).layers["output"].value
    split = {"data": data["data"][:, :2], "data/size0": np.array([2, 2], "int32")}
    split.update({"more": data["data"][:, 2:], "more/size0": data["data/size0"] - 2})
    np.testing.assert_allclose(parts.run(split).layers["output"].value, expected[:, 2:], atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("value,expected", [("zeros", 0.0), ("ones", 1.0), (0, 0.0), (1, 1.0), (None, 0.0)])
@pytest.mark.parametrize("unit,key", [("lstm", "h"), ("gru", "*")])
def test_constant_initial_state(unit, key, value, expected):
    """Of an empty sequence the last state is the initial one."""
    data = feed()
    data["data/size0"] = np.array([5, 0], "int32")
    net = make_net({
        "rec": rec(unit=unit, initial_state=value),
        "output": {"class": "get_last_hidden_state", "from": "rec", "key": key},
    })  # fmt: skip
    value = net.run(data).layers["output"].value
    assert (value[1] == expected).all() and (value[0] != expected).all()


def test_initial_state_from_layers_and_parameters():
    net = make_net({
        "rec": rec(initial_state={"h": "data:ctx", "c": "var"}),
        "output": {"class": "get_last_hidden_state", "from": "rec", "key": "*"},
    })  # fmt: skip
    net.params["rec/rec/initial_c"].assign(np.arange(N, dtype="float32"))
    data = feed()
    data["data/size0"] = np.array([5, 0], "int32")
    value = net.run(data).layers["output"].value
    np.testing.assert_allclose(value[1], np.concatenate([np.arange(N), data["ctx"][1]]), rtol=1e-6)


def test_last_hidden_state():
    """`*` is c and then h; h is the last valid output, with direction -1 the first one; several sources are joined."""
    state = {"class": "get_last_hidden_state", "is_output_layer": True}
    out = run({
        "output": rec(),
        "bw": rec(direction=-1),
        "gru": rec(unit="gru"),
        "h": {**state, "from": "output", "key": "h"},
        "all": {**state, "from": "output"},
        "c": {**state, "from": "output", "key": "c", "n_out": N},
        "h_bw": {**state, "from": "bw", "key": "h"},
        "s_gru": {**state, "from": "gru"},
        "both": {**state, "from": ["output", "bw"], "key": "h", "n_out": 2 * N},
        "copy": {"class": "copy", "from": "output"},
        "through_copy": {**state, "from": "copy", "key": "h"},
    })  # fmt: skip
    values = {name: layer.value for name, layer in out.items()}
    assert out["all"].axes == ("B", "F")
    last = values["output"][np.arange(2), np.array(LENGTHS) - 1]
    np.testing.assert_array_equal(values["h"], last)
    np.testing.assert_array_equal(values["all"], np.concatenate([values["c"], last], axis=-1))
    np.testing.assert_array_equal(values["h_bw"], values["bw"][:, 0])
    np.testing.assert_array_equal(values["s_gru"], values["gru"][np.arange(2), np.array(LENGTHS) - 1])
    np.testing.assert_array_equal(values["both"], np.concatenate([values["h"], values["h_bw"]], axis=-1))
    np.testing.assert_array_equal(values["through_copy"], values["h"])


@pytest.mark.parametrize("direction", [1, -1])
def test_further_axes_count_as_batch(direction):
    net = make_net({
        "output": rec(direction=direction, initial_state={"h": "data:ctx", "c": "ones"}, **{"from": "data:image"}),
        "state": {"class": "get_last_hidden_state", "from": "output", "key": "h", "is_output_layer": True},
    })  # fmt: skip
    data = feed()
    result = net.run(data).layers
    assert result["output"].axes == ("B", "T", "S", "F") and result["state"].axes == ("B", "S", "F")
    single = make_net({"output": rec(direction=direction, initial_state={"h": "data:ctx", "c": "ones"})})
    single.set_param_values(net.get_param_values())
    for column in range(2):
        expected = single.run({**data, "data": data["image"][:, :, column]}).layers["output"].value
        np.testing.assert_allclose(result["output"].value[:, :, column], expected, atol=1e-6)


def test_other_axis():
    """Iterating over a static axis: the frames count as batch, and the lengths stay with the time axis."""
    net = make_net({
        "output": rec(axis="dim:2", **{"from": "data:image"}),
        "state": {"class": "get_last_hidden_state", "from": "output", "key": "h", "is_output_layer": True},
    })  # fmt: skip
    out = net.run(feed()).layers
    assert out["output"].axes == ("B", "S", "T", "F") and out["state"].axes == ("B", "T", "F")
    np.testing.assert_array_equal(out["output"].sizes[2], LENGTHS)
    np.testing.assert_array_equal(out["state"].value, out["output"].value[:, -1])


def test_sparse_source():
    out = run({"output": rec(**{"from": "data:labels"})})["output"]
    assert out.axes == ("B", "T", "F") and out.value.shape == (2, 5, N)


def test_noise_differs_between_steps_only_in_training():
    def outputs(train):
        net = make_net({"output": rec(unit_opts={"rec_weight_dropout": 0.5})}, train=train)
        values = []
        for step in range(2):
            net.global_step.assign(step)
            values.append(net.run(feed()).layers["output"].value)
        return values

    first, second = outputs(train=False)
    np.testing.assert_array_equal(first, second)
    first, second = outputs(train=True)
    assert abs(first - second).max() > 1e-3


def test_zoneout_output_from_behavior_version_17():
    network = {"output": rec(unit="zoneoutlstm", unit_opts={"zoneout_factor_output": 0.3}, **{"from": "data"})}
    old, new = (run(network, behavior_version=version)["output"].value for version in (16, 17))
    assert abs(old - new).max() > 1e-3


LAST = {"class": "get_last_hidden_state", "from": "rec"}


@pytest.mark.parametrize(
    "network,message",
    [
        ({"output": rec(unit="lsmt")}, r"Layer 'output' \(class 'rec'\): .*unknown unit 'lsmt'. Did you mean 'lstm'"),
        (
            {"output": rec(unit={"out": {"class": "copy"}})},
            "Layer 'output': the unit has no layer 'output'. Did you mean 'out'",
        ),
        ({"output": rec(unit=3)}, "option 'unit' must be a string or a dict.*, got 3"),
        ({"output": rec(unit_opts={"forget_bais": 1.0}, unit="standardlstm")}, "Did you mean 'forget_bias'"),
        ({"output": rec(direction=0)}, "direction must be 1 or -1, not 0"),
        ({"output": rec(axis="F")}, "cannot iterate over the feature axis"),
        ({"output": rec(axis="B")}, "cannot iterate over the batch axis"),
        ({"output": rec(n_out=None)}, "'n_out' is missing"),
        ({"output": rec(input_projection=False)}, r"needs a dense input of dim 16 \(4 \* n_out\)"),
        (
            {"output": rec(initial_state=0.5)},
            "initial_state must be 'zeros', 'ones', 'var', 'keep_over_epoch', .* not 0.5",
        ),
        ({"output": rec(initial_state={"h": "zeros"})}, "initial_state has no key 'c'"),
        ({"output": rec(initial_state={"h": 0, "c": 0, "s": 0})}, "initial_state has the unknown key 's'"),
        ({"output": rec(unit="gru", initial_state={"h": 0})}, "this unit has a single state without a name"),
        ({"output": rec(initial_state="data:ctx")}, "cannot serve as both of c and h"),
        (
            {"output": rec(n_out=5, initial_state={"h": "data:ctx", "c": 0})},
            r"initial_state\['h'\]: layer .*ctx.* needed",
        ),
        ({"output": rec(initial_state={"h": "data", "c": 0})}, r"initial_state\['h'\]: layer .*data"),
        (
            {"output": rec(initial_state="rec2"), "rec2": rec(unit="gru")},
            r"is one tensor without a name \(4\), but that of this unit is c \(4\) and h \(4\)",
        ),
        ({"rec": rec(), "output": {**LAST, "key": "s"}}, "the state of source 'rec' has no key 's'. Known: "),
        ({"rec": rec(), "output": {**LAST, "key": 0}}, "has no key 0"),
        (
            {"rec": rec(unit="gru"), "output": {**LAST, "key": "h"}},
            "single state without a name, so there is no key 'h'",
        ),
        ({"rec": rec(), "output": {**LAST, "n_out": 3, "key": "h"}}, "n_out is 3, but the state 'h' has dim 4"),
        ({"output": {**LAST, "from": "data"}}, "source .*data.* has no hidden state"),
        ({"rec": rec(), "output": {**LAST, "combine": "add"}}, "combine must be 'concat', not 'add'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors(network, message):
    with pytest.raises(ConfigError, match=message):
        make_net(network)


@pytest.mark.parametrize("projected", [False, True])
def test_forget_bias_of_the_native_lstm(projected):
    h = {"class": "linear", "activation": None, "n_out": 4 * N, "from": "data"}
    source = {"from": "h", "input_projection": False} if projected else {"from": "data"}
    cell = {"class": "rec", "unit": "nativelstm2", "n_out": N, **source}
    nets = [make_net({"h": h, "output": {**cell, "unit_opts": opts}}) for opts in (None, {"forget_bias": 1.5})]
    bias = "h/b" if projected else "output/rec/b"
    params = nets[1].get_param_values()
    shifted = params[bias] + np.repeat([0, 0, 1.5, 0], N)
    nets[0].set_param_values({**params, bias: shifted})
    feed = {"data": np.random.RandomState(1).normal(size=(2, 5, IN)).astype("float32"), "data/size0": LENGTHS}
    values = [net.run(feed).layers["output"].value for net in nets]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5)
