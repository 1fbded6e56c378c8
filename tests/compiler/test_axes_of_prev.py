"""``prev:x`` has the axes of ``initial_output`` of x if these are more: the step is broadcast to it."""

import numpy as np
import pytest

from returnn_tf import Config, Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

T, F, OTHER = SpatialDim("time"), FeatureDim("feat", 3), FeatureDim("other", 2)
NETWORK = {
    "zero": {"class": "constant", "value": 0.0, "shape": [batch_dim, F], "shape_deps": ["data"]},
    "none": {"class": "constant", "value": 0, "shape": [batch_dim, F], "shape_deps": ["data"]},
    "vector": {"class": "constant", "value": 0.0, "shape": [F]},
    "other": {"class": "constant", "value": 0.0, "shape": [batch_dim, OTHER], "shape_deps": ["data"]},
    "range": {"class": "range_in_axis", "from": "data", "axis": T, "dtype": "float32"},
    "ones": {"class": "reduce", "mode": "mean", "from": "data", "axis": F},
    "sums": {"class": "eval", "eval": "source(0) * 0. + 6.", "from": "ones"},
}


def _add(first, initial, step="t", **options):
    return {"class": "combine", "kind": "add", "from": [first, step], "initial_output": initial, **options}


def _sum(source):
    return {"class": "reduce", "mode": "sum", "axis": F, "from": source}


def _config(unit):
    unit = {
        "t": {"class": "rec_unstack", "from": "base:range", "axis": T},
        **unit,
        "output": {"class": "copy", "from": "t"},
    }
    unit["x"] = {**unit["x"], "need_last": True}
    network = {
        **NETWORK,
        "loop": {"class": "rec", "from": [], "axis": T, "unit": unit},
        "output": {"class": "rec_last_output", "rec_layer": "loop", "sub_layer_name": "x"},
    }
    extern_data = {"data": {"dim_tags": (batch_dim, T, F)}}
    return Config({"extern_data": extern_data, "behavior_version": 12, "network": network})


#: Unit, the axes of the last value of "x" after 4 and 3 steps of 0, 1, 2, 3, and this value without batch and time.
CASES = {
    "combine": ({"x": _add("prev:x", "base:zero")}, "BF", (6, 3)),
    "out_shape": ({"x": _add("prev:x", "base:zero", out_shape={batch_dim, F})}, "BF", (6, 3)),
    "no batch axis": ({"x": _add("prev:x", "base:vector")}, "F", (6,)),
    "integers": ({"x": _add("prev:x", "base:none")}, "BF", (6, 3)),
    "out_shape of a copy": (
        {
            "sum": {"class": "combine", "kind": "add", "from": ["prev:x", "t"]},
            "x": {"class": "copy", "from": "sum", "initial_output": "base:zero", "out_shape": {batch_dim, F}},
        },
        "BF",
        (6, 3),
    ),
    "used in the step": (
        {"a": _add("prev:a", "base:zero"), "b": _sum("a"), "x": _add("prev:x", 0, "b")},
        "B",
        (30, 12),
    ),
    "reads another state": (
        {
            "a": _add("prev:x", None),
            "x": {"class": "eval", "eval": "source(0)", "from": "a", "initial_output": "base:zero"},
        },
        "BF",
        (6, 3),
    ),
    "by two states": (
        {"a": _add("prev:x", "base:zero"), "x": {"class": "copy", "from": "prev:a", "initial_output": "base:zero"}},
        "BF",
        (2, 1),
    ),
    "no cycle": (
        {"a": {"class": "copy", "from": "t", "initial_output": "base:zero"}, "x": _add("prev:a", None)},
        "BF",
        (5, 3),
    ),
    "step of fewer axes": (
        {
            "b": _add("prev:b", 0.0),
            "a": {"class": "copy", "from": "b", "initial_output": "base:zero"},
            "x": _add("prev:a", None),
            "b2": {"class": "copy", "from": "a"},
        },
        "BF",
        (6, 3),
    ),
    "known for all steps": (
        {
            "a": {"class": "rec_unstack", "from": "base:sums", "axis": T, "initial_output": "base:zero"},
            "x": {"class": "copy", "from": "prev:a"},
        },
        "BF",
        (6, 6),
    ),
    "subnetwork": (
        {
            "x": {
                "class": "subnetwork",
                "from": [],
                "initial_output": "base:zero",
                "subnetwork": {"output": _add("base:prev:x", None, "base:t")},
            }
        },
        "BF",
        (6, 3),
    ),
    "in a subnetwork": (
        {
            "sub": {
                "class": "subnetwork",
                "from": [],
                "subnetwork": {
                    "y": _add("prev:y", "base:base:zero", "base:t"),
                    "output": {"class": "copy", "from": "y"},
                },
            },
            "x": {"class": "copy", "from": "sub/y"},
        },
        "BF",
        (6, 3),
    ),
}


@pytest.mark.parametrize("unit,axes,values", list(CASES.values()), ids=list(CASES))
def test_values(unit, axes, values):
    x = np.zeros((2, 4, 3), "float32")
    output = Network.from_config(_config(unit)).run({"data": x, "data/size0": np.array([4, 3])}).layers["output"]
    assert "".join(output.axes) == axes
    expected = np.array(values, "float32").reshape([-1 if axis == "B" else 1 for axis in axes])
    np.testing.assert_array_equal(output.value, np.broadcast_to(expected, [{"B": 2, "F": 3}[axis] for axis in axes]))


@pytest.mark.parametrize(
    "unit,template",
    [
        ({"x": _add("prev:x", "base:data")}, "[B, T|time, F|feat=3]"),
        ({"x": _add("prev:x", "base:zero", "base:data")}, "[B, T|time, F|feat=3]"),
        ({"x": _add("prev:x", "base:vector", "base:zero")}, "[B, F|feat=3]"),
        (
            {"x": {"class": "print", "from": "a", "initial_output": "base:zero"}, "a": _add("prev:x", None)},
            "[B, F|feat=3]",
        ),
    ],
)
def test_templates(unit, template):
    plan = plan_from_config(_config(unit))
    output = next(node.output for node in plan.nodes if node.path == "output")
    assert str(output).startswith(template)


def test_features_that_do_not_fit():
    with pytest.raises(ConfigError, match="layer 'other' is .* the value of a step is .* without the axis other=2"):
        plan_from_config(_config({"x": _add("prev:x", "base:other", "base:zero")}))


STATE = {"class": "linear", "activation": "tanh", "n_out": 3}
#: Units with a state that is computed from itself, and whether it has a batch axis.
STATES = {
    "alone": ({"x": {**STATE, "from": "prev:x"}}, False),
    "two of each other": ({"x": {**STATE, "from": "prev:y"}, "y": {**STATE, "from": ["x", "prev:y"]}}, False),
    "with the step": (
        {"x": {**STATE, "from": ["prev:x", "i"]}, "i": {"class": "expand_dims", "axis": "F", "from": "t"}}, False),
    "parts": ({
        "h": {**STATE, "from": "prev:x"},
        "s": {"class": "split", "from": "h", "size_splits": [1, 2]},
        "x": {**STATE, "from": ["s/0", "s/1"]},
    }, False),
    "beside one with a batch": (
        {"x": {**STATE, "from": "prev:x"}, "y": {**STATE, "from": ["prev:y", "base:zero"], "need_last": True}}, False),
    "reads one without": ({"x": {**STATE, "from": ["y", "base:zero"]}, "y": {**STATE, "from": "prev:y"}}, True),
    "a constant with a batch": ({
        "x": {**STATE, "from": ["prev:x", "c"]},
        "c": {"class": "constant", "value": 0.0, "shape": [batch_dim, 1]},
    }, True),
    "an outer layer": ({"x": {**STATE, "from": ["prev:x", "base:zero"]}}, True),
    "initial output": ({"x": {**STATE, "from": "prev:x", "initial_output": "base:zero"}}, True),
    "cell": ({"x": {"class": "rnn_cell", "unit": "GRU", "n_out": 3, "from": "prev:x"}}, True),
}  # fmt: skip


@pytest.mark.parametrize("name", list(STATES))
def test_batch_axis_of_a_state_that_is_computed_from_itself(name):
    unit, has_batch = STATES[name]
    x = np.zeros((2, 4, 3), "float32")
    net = Network.from_config(_config(unit))
    net.set_param_values({name: np.full(param.shape, 0.5) for name, param in net.params.items()})
    output = net.run({"data": x, "data/size0": np.array([4, 4])}).layers["output"]
    assert output.axes == (("B", "F") if has_batch else ("F",))
    assert (output.value != 0).all()
