"""`variable`, `variable_assign`, `variable_read`, `accumulate_mean`."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, net_of, run, template

N, M = SpatialDim("n", 2), FeatureDim("m", 3)


@pytest.mark.parametrize(
    "options,axes,shape,value",
    [
        ({"shape": (3,), "init": 2.5}, "F", (3,), 2.5),
        ({"shape": [N, M], "init": "ones"}, "S,F", (2, 3), 1),
        ({"shape": 4}, "F", (4,), 0),
        ({"shape": (), "init": 7, "dtype": "int32"}, "", (), 7),
        ({"shape": (2, 3), "init": np.arange(6.0).reshape(2, 3)}, "S,F", (2, 3), np.arange(6).reshape(2, 3)),
        ({"shape": (3,), "add_batch_axis": True, "init": 1}, "B,F", (3, 3), 1),
        ({"shape": (3,), "add_time_axis": True, "init": 1}, "S,F", (1, 3), 1),
        ({"shape": (3,), "add_batch_axis": True, "add_time_axis": True, "init": 1}, "B,S,F", (3, 1, 3), 1),
    ],
)
def test_variable(options, axes, shape, value):
    net = net_of({"output": {"class": "variable", **options}})
    result = net.run(feed()).layers["output"]
    assert ",".join(result.axes) == axes
    np.testing.assert_array_equal(result.value, np.broadcast_to(value, shape))
    assert list(net.params) == ["output/output"]


def test_names_and_trainable():
    net = net_of({
        "a": {"class": "variable", "shape": [2], "param_name": "p", "is_output_layer": True},
        "b": {"class": "variable", "shape": [2], "trainable": False, "is_output_layer": True},
        "c": {"class": "variable", "shape": [2], "dtype": "int64", "is_output_layer": True, "saveable": False},
        "sub": {"class": "subnetwork", "from": "data", "is_output_layer": True, "subnetwork": {
            "output": {"class": "variable", "shape": [3]}}},
    })  # fmt: skip
    assert sorted(net.params) == ["a/p", "b/b", "c/c", "sub/output/output"]
    assert sorted(net.trainable_params) == ["a/p", "sub/output/output"]
    assert net.params["c/c"].dtype.name == "int64"


def test_initial_value_of_a_constant_layer():
    net = net_of({
        "k": {"class": "constant", "value": np.array([1.0, 2.0], "float32")},
        "output": {"class": "variable", "shape": [2], "init_by_layer": "k"},
    })  # fmt: skip
    np.testing.assert_array_equal(net.params["output/output"].numpy(), [1, 2])
    fails({"class": "variable", "shape": [2], "init_by_layer": "data"}, "does not fit the parameter")


@pytest.mark.slow
def test_initial_value_of_any_layer():
    """The layers are computed once, from the initial values of the parameters that they read."""
    network = {
        "a": {"class": "variable", "shape": [STATIC, FEATURE], "init": "random_normal"},
        "k": {"class": "constant", "value": np.array([1.0, 2.0, 3.0], "float32"), "shape": [FEATURE]},
        "sum": {"class": "combine", "kind": "add", "from": ["a", "k"], "allow_broadcast_all_sources": True},
        "v": {"class": "variable", "shape": [FEATURE, STATIC], "init_by_layer": "sum"},
        "w": {"class": "variable", "shape": [FEATURE], "init_by_layer": "mean", "trainable": False},
        "mean": {"class": "reduce", "mode": "mean", "axis": STATIC, "from": "v"},
        "drawn": {"class": "random", "shape": [FEATURE], "distribution": "normal"},
        "x": {"class": "variable", "shape": [FEATURE], "init_by_layer": "drawn"},
        "output": {"class": "combine", "kind": "add", "from": ["data", "w", "x"]},
    }
    nets = [net_of(network, random_seed=seed) for seed in (1, 1, 2)]
    for net in nets:
        a, v, w = (net.params[name].numpy() for name in ("a/a", "v/v", "w/w"))
        np.testing.assert_allclose(v, (a + [1, 2, 3]).T, rtol=1e-6)
        np.testing.assert_allclose(w, v.mean(axis=1), rtol=1e-6)
    x = [net.params["x/x"].numpy() for net in nets]
    assert (x[0] == x[1]).all() and (x[0] != x[2]).all()
    nets[0].set_param_values({"a/a": np.zeros([2, 3]), "w/w": np.ones(3)})
    out = nets[0].run(feed()).layers["output"].value  # the initial value is no link
    np.testing.assert_allclose(out, feed()["data"] + 1 + x[0], rtol=1e-5)


@pytest.mark.parametrize(
    "layer,message",
    [
        ({"class": "reduce", "mode": "sum", "axis": ["B", "T"], "from": "data"}, "depends on the input 'data'"),
        ({"class": "constant", "value": 1, "shape": [FEATURE], "with_batch_dim": True}, "does not fit"),
        ({"class": "eval", "eval": "source(0) > 1", "from": "k", "out_type": {"dtype": "bool"}}, "does not fit"),
        ({"class": "eval", "eval": "source(0)", "from": "output"}, "cycle: output <- v"),
    ],
)
def test_layers_that_are_no_initial_value(layer, message):
    network = {
        "k": {"class": "constant", "value": 1.0, "shape": [FEATURE]},
        "i": {"class": "eval", "eval": "source(0)", "from": "l"},
        "l": layer,
        "v": {"class": "variable", "shape": [FEATURE], "init_by_layer": "i"},
        "output": {"class": "combine", "kind": "add", "from": ["data", "v"]},
    }
    with pytest.raises(ConfigError, match=message):
        template(network)


def test_initial_value_of_a_layer_outside_the_loop():
    unit = {
        "v": {"class": "variable", "shape": [FEATURE], "init_by_layer": "base:k"},
        "output": {"class": "combine", "kind": "add", "from": ["data:source", "v"]},
    }
    for move in (True, False):
        net = net_of({
            "c": {"class": "constant", "value": 2.0, "shape": [FEATURE]},
            "k": {"class": "eval", "eval": "source(0) * 2", "from": "c"},
            "loop": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": move},
            "output": {"class": "copy", "from": "loop"},
        })  # fmt: skip
        np.testing.assert_array_equal(net.params["loop/rec/v/v"].numpy(), [4, 4, 4])
        mask = np.arange(4) < LENS[:, None]
        out = net.run(feed()).layers["output"].value
        np.testing.assert_allclose(out[mask], feed()["data"][mask] + 4, rtol=1e-6)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"shape": [TIME]}, "shape must hold sizes and static dims"),
        ({"shape": [2], "init": "one"}, "one"),
        ({"shape": [2], "dtype": "float"}, "option 'dtype' is 'float'. Did you mean 'float"),
    ],
)
def test_errors(options, message):
    fails({"class": "variable", **options}, message)


def assign_net(**options):
    return {
        "v": {"class": "variable", "shape": [STATIC, FEATURE], "init": 1.0, "is_output_layer": True},
        "c": {"class": "constant", "value": np.array([1.0, 2.0, 3.0], "float32"), "shape": [FEATURE]},
        "as": {"class": "variable_assign", "var": "v", "value": "c", **options},
        "output": {"class": "variable_read", "var": "v", "control_dependencies": ["as"]},
    }


@pytest.mark.parametrize("op,runs,expected", [("assign", 2, [1, 2, 3]), ("add", 1, [2, 3, 4]), ("add", 2, [3, 5, 7])])
def test_assign_and_read(op, runs, expected):
    """The value is broadcast; reading after it sees the new value, the variable layer the old one."""
    net = net_of(assign_net(op=op))
    for _ in range(runs):
        before = net.params["v/v"].numpy()
        result = net.run(feed()).layers
    np.testing.assert_array_equal(result["output"].value, [expected, expected])
    np.testing.assert_array_equal(result["v"].value, before)
    np.testing.assert_array_equal(net.params["v/v"].numpy(), [expected, expected])


def test_assign_gives_a_dummy():
    net = {**assign_net(), "output": {"class": "copy", "from": "as"}}
    result = run(net)["output"]
    assert result.value == 0 and result.value.dtype == "int32"


@pytest.mark.parametrize(
    "options,message",
    [
        ({"op": "mul"}, "'op' is 'mul'. Known: assign, add"),
        ({"var": "c"}, "var 'c' must be a layer of class 'variable', not 'constant'"),
        ({"value": "data"}, "has the axis batch, which the variable"),
        ({"value": "i"}, "the value is int32, but the variable is float32"),
    ],
)
def test_assign_errors(options, message):
    net = {**assign_net(**options), "i": {"class": "constant", "value": 1}}
    with pytest.raises(Exception, match=message):
        net_of(net)


def test_read_has_a_gradient():
    net = net_of({
        "v": {"class": "variable", "shape": [FEATURE], "init": 2.0},
        "r": {"class": "variable_read", "var": "v"},
        "output": {"class": "combine", "kind": "mul", "from": ["data", "r"], "loss": "as_is"},
    })  # fmt: skip
    grad = net.run(feed(), with_grad=True).grads["v/v"]
    mask = (np.arange(4) < LENS[:, None])[:, :, None]
    np.testing.assert_allclose(grad, (feed()["data"] * mask).sum((0, 1)), rtol=1e-5)


def mean_net(**options):
    return {"output": {"class": "accumulate_mean", "exp_average": 0.25, "from": "data", **options}}


def test_accumulate_mean_in_training():
    net = net_of(mean_net(), train=True)
    x = feed()["data"]
    mean = np.concatenate([x[b, :n] for b, n in enumerate(LENS)]).mean(0)
    first, second = (net.run(feed()).layers["output"].value for _ in range(2))
    np.testing.assert_array_equal(first, np.zeros(3))
    np.testing.assert_allclose(second, 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(net.params["output/mean_1"].numpy(), (0.25 + 0.75 * 0.25) * mean, rtol=1e-5)
    assert not net.trainable_params


@pytest.mark.parametrize(
    "options,initial", [({}, 0), ({"initial_value": 0.5}, 0.5), ({"is_prob_distribution": True}, 1 / 3)]
)
def test_accumulate_mean_in_evaluation(options, initial):
    net = net_of(mean_net(**options))
    for _ in range(2):
        np.testing.assert_allclose(net.run(feed()).layers["output"].value, [initial] * 3, rtol=1e-6)
