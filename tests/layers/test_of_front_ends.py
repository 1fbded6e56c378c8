"""Forms of layers that programs write rather than people."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import FeatureDim, ImplicitDynSizeDim, ImplicitSparseDim, SpatialDim, batch_dim
from tests.layers.nets import FEATURE, LENS, TIME, fails, feed, net_of, run, template


def _frames(x: Any) -> Any:
    return np.concatenate([x[b, :n] for b, n in enumerate(LENS)])


@pytest.mark.parametrize("init", [0.0, 2.0])
@pytest.mark.parametrize("train", [False, True])
def test_batch_norm_of_layers_as_parameters(init: float, train: bool) -> None:
    """Outside of training they are used, in training they move towards those of the batch."""
    dim = FeatureDim("feat", 3)
    layer: dict[str, Any] = {
        "class": "batch_norm", "from": "data", "use_std": False, "use_shift": False, "param_version": 2,
        "masked_time": True, "reuse_params": {"map": {
            "batch_norm/v2_mean": {"layer_output": "mean"}, "batch_norm/v2_variance": {"layer_output": "var"}}},
    }  # fmt: skip
    variable = {"class": "variable", "shape": [dim], "param_name": "param", "trainable": False}
    network = {
        "mean": {**variable, "init": init},
        "var": {**variable, "init": 1.0},
        "output": layer,
    }
    net = net_of(network, train=train, extern_data={"data": {"feature_dim": dim, "dim": 3}})
    data = {key: value for key, value in feed().items() if key.startswith("data")}
    result = net.run(data)
    x = _frames(data["data"]).astype("float64")
    mean, variance = (x.mean(0), x.var(0)) if train else (init, 1.0)
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(_frames(result.layers["output"].value), expected, atol=1e-4)
    after = net.get_param_values()
    assert sorted(after) == ["mean/param", "var/param"]
    share = 0.1 if train else 0.0
    np.testing.assert_allclose(after["mean/param"], init + share * (x.mean(0) - init), rtol=1e-4)
    np.testing.assert_allclose(after["var/param"], 1.0 + share * (x.var(0) - 1.0), rtol=1e-4)


UPDATED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "accumulate_mean": (
        {"class": "accumulate_mean", "exp_average": 0.25, "from": "data"}, "mean_1",
        {"class": "variable", "shape": [FEATURE], "trainable": False, "init": 2.0},
    ),
    "random": (
        {"class": "random", "distribution": "normal", "mean": 0.0, "stddev": 1.0, "shape": [FEATURE]},
        "random_generator/StateVar",
        {"class": "variable", "shape": [3], "dtype": "int64", "trainable": False, "init": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UPDATED))
def test_updates_of_the_variable_of_a_layer(name: str) -> None:
    layer, param, variable = UPDATED[name]
    reuse = {"reuse_params": {"map": {param: {"layer_output": "v"}}}}
    net = net_of({"v": {**variable, "param_name": "param"}, "output": {**layer, **reuse}}, train=True)
    assert list(net.params) == ["v/param"]
    before = net.params["v/param"].numpy()
    values = [net.run(feed()).layers["output"].value for _ in range(2)]
    assert (values[0] != values[1]).any()
    assert (net.params["v/param"].numpy() != before).any()


@pytest.mark.parametrize("train", [False, True])
def test_a_parameter_that_is_updated_is_a_variable(train: bool) -> None:
    network = {
        "v": {"class": "variable", "shape": [FEATURE], "init": 2.0},
        "twice": {"class": "eval", "eval": "source(0) * 2", "from": "v"},
        "output": {"class": "accumulate_mean", "exp_average": 0.25, "from": "data",
                   "reuse_params": {"map": {"mean_1": {"layer_output": "twice"}}}},
    }  # fmt: skip
    net = net_of(network, train=train)
    if not train:
        np.testing.assert_array_equal(net.run(feed()).layers["output"].value, [4.0] * 3)
        return
    with pytest.raises(ConfigError, match="updates its parameter 'mean_1', so what reuse_params gives for it must be"):
        net.run(feed())


def test_dropout_none_is_no_dropout() -> None:
    network = {"output": {"class": "copy", "from": "data", "dropout": None}}
    arrays = feed()
    result = net_of(network, train=True).run(arrays)
    np.testing.assert_array_equal(result.layers["output"].value, arrays["data"])


@pytest.mark.parametrize(
    "opts, slope",
    [({}, [1e7, 2.0]), ({"use_fake_grad": False}, [0.0, 2.0]), ({"use_fake_grad": True}, [1e7, 2.0])],
)
def test_safe_log_with_the_gradient_of_log(opts: Any, slope: Any) -> None:
    """use_fake_grad (default): the gradient is that of the log at eps, where the value is clipped."""
    network = {
        "v": {"class": "variable", "shape": [2], "init": np.array([-3.0, 0.5], "float32")},
        "log": {"class": "activation", "activation": "safe_log", "opts": {"eps": 1e-7, **opts}, "from": "v"},
        "output": {"class": "copy", "from": "log", "loss": "as_is"},
    }
    result = net_of(network, train=True).run({}, with_grad=True)
    np.testing.assert_allclose(result.layers["output"].value, np.log([1e-7, 0.5]), rtol=1e-5)
    (gradient,) = result.grads.values()
    np.testing.assert_allclose(gradient, slope, rtol=1e-5)


def test_safe_log_of_infinity_with_the_gradient_of_log() -> None:
    opts = {"use_fake_grad": True}
    network = {"output": {"class": "activation", "activation": "safe_log", "opts": opts, "from": "data"}}
    value = net_of(network).run({"data": np.full((1, 1, 3), np.inf, "float32"), "data/size0": [1]})
    np.testing.assert_array_equal(value.layers["output"].value, np.inf)


@pytest.mark.parametrize("axis", ["F", "feature"])
def test_squeeze_of_an_axis_that_labels_lack(axis: str) -> None:
    extern_data = {"data": {"dim": 7}, "classes": {"dim": 5, "sparse": True}}
    network = {"output": {"class": "squeeze", "axis": axis, "from": "data:classes"}}
    assert template(network, extern_data=extern_data, behavior_version=0).axis_kinds == ("B", "T")
    fails({"class": "squeeze", "axis": "stag:other", "from": "data"}, "has no axis 'stag:other'. Set allow_no_op")
    fails(network["output"], "has no axis '%s'" % axis, extern_data=extern_data, behavior_version=1)


@pytest.mark.parametrize("index", [0, 1])
def test_names_of_the_axes_of_an_array(index: int) -> None:
    array = np.arange(15, dtype="float32").reshape(3, 5)
    network = {
        "w": {"class": "constant", "value": array},
        "output": {"class": "reduce", "mode": "sum", "from": "w", "axis": "stag:w_const:static:%d" % index},
    }
    np.testing.assert_allclose(run(network)["output"].value, array.sum(index))


@pytest.mark.parametrize("dims, axes", [((1, -1), "SBTF"), ((-1, 1), "BSTF"), ((1, -1, 1), "SBSTF")])
def test_split_dims_of_the_batch_with_ones(dims: Any, axes: str) -> None:
    arrays, network = feed(), {"output": {"class": "split_dims", "from": "data", "axis": "B", "dims": dims}}
    assert "".join(template(network).axis_kinds) == axes
    result = run(network, arrays)["output"]  # results are given with the batch first
    expected = arrays["data"].reshape(3, *[1] * (len(dims) - 1), *arrays["data"].shape[1:])
    np.testing.assert_array_equal(result.value, expected)


def test_split_dims_of_the_batch_without_the_batch() -> None:
    fails({"class": "split_dims", "from": "data", "axis": "B", "dims": (2, -1)}, "is split into batch_dim and others")


@pytest.mark.parametrize("size, strides", [((1, 12), (1, 12)), ((2, 2), (2, 2)), ((3, 2), (1, 2))])
def test_transposed_conv_in_two_dims_with_exact_padding(size: Any, strides: Any) -> None:
    network = {
        "x": {"class": "split_dims", "from": "data", "axis": "T", "dims": [-1, 1]},
        "output": {
            "class": "transposed_conv", "from": "x", "activation": None, "n_out": 2, "filter_size": size,
            "strides": strides, "padding": "valid", "in_spatial_dims": ["T", "stag:x_split_dims1"],
            "output_padding": (0, 0), "remove_padding": (0, 0),
        },
    }  # fmt: skip
    net = net_of(network)
    arrays = feed()
    result = net.run(arrays).layers["output"].value
    w = net.get_param_values()["output/W_native_transposed_conv"]
    x = arrays["data"]
    expected = np.zeros([3, (x.shape[1] - 1) * strides[0] + size[0], size[1], 2])
    for t in range(x.shape[1]):
        at = t * strides[0]
        expected[:, at : at + size[0]] += np.einsum("bc,ijoc->bijo", x[:, t], w)
    np.testing.assert_allclose(result, expected, atol=1e-5)


MARKED, OTHER = FEATURE.copy(match_priority=1), SpatialDim("other", 3)
#: The weights of a square matrix; the input features have the higher priority.
WEIGHTS = np.arange(9, dtype="float32").reshape(3, 3) ** 2


@pytest.mark.parametrize(
    "layer, expected",
    [
        ({"class": "dot", "from": ["data", "w"], "reduce": FEATURE}, lambda x, w: x @ w),
        ({"class": "dot", "from": ["data", "w"], "reduce": MARKED}, lambda x, w: x @ w),
        ({"class": "dot", "from": ["data", "w"], "red1": "F", "red2": FEATURE}, lambda x, w: x @ w),
        ({"class": "dot", "from": ["w", "w"], "reduce": FEATURE}, lambda x, w: np.einsum("ij,ij->j", w, w)),
        ({"class": "reduce", "mode": "sum", "from": "w", "axis": FEATURE}, lambda x, w: w.sum(0)),
        ({"class": "reduce", "mode": "sum", "from": "w", "axis": MARKED}, lambda x, w: w.sum(0)),
        ({"class": "reduce", "mode": "sum", "from": "w", "axis": [MARKED, FEATURE]}, lambda x, w: w.sum()),
        ({"class": "reduce", "mode": "sum", "from": "w", "axis": "F"}, lambda x, w: w.sum(1)),
        ({"class": "combine", "kind": "mul", "from": ["w", "v"]}, lambda x, w: w * np.array([[1], [2], [3]])),
        ({"class": "gather", "from": "w", "axis": FEATURE, "position": 2}, lambda x, w: w[2]),
        ({"class": "slice", "from": "w", "axis": FEATURE, "slice_end": 1}, lambda x, w: w[:1]),
        ({"class": "softmax_over_spatial", "from": "w", "axis": FEATURE, "use_time_mask": False}, lambda x, w: (
            np.exp(w - w.max(0)) / np.exp(w - w.max(0)).sum(0)).T),
        ({"class": "reinterpret_data", "from": "w", "set_dim_tags": {FEATURE: OTHER}}, lambda x, w: w),
        ({"class": "merge_dims", "from": "w", "axes": [MARKED, FEATURE]}, lambda x, w: w.reshape(9)),
        ({"class": "merge_dims", "from": "w", "axes": [FEATURE, MARKED]}, lambda x, w: w.T.reshape(9)),
        ({"class": "transpose", "from": "w", "perm": {FEATURE: MARKED, MARKED: FEATURE}}, lambda x, w: w.T),
        ({"class": "transpose", "from": "w", "perm": [FEATURE, MARKED]}, lambda x, w: w.T),
        ({"class": "swap_axes", "from": "w", "axis1": FEATURE, "axis2": MARKED}, lambda x, w: w.T),
        ({"class": "dot", "from": ["w", "w"], "red1": [MARKED, FEATURE], "red2": [FEATURE, MARKED]}, lambda x, w: (
            w * w.T).sum()),
    ],
)  # fmt: skip
def test_match_priority(layer: Any, expected: Any) -> None:
    """A dim means the axis with the higher priority; the other one remains."""
    network = {
        "w": {"class": "variable", "shape": (MARKED, FEATURE), "param_name": "param", "init": WEIGHTS},
        "v": {"class": "variable", "shape": [FEATURE], "init": np.array([1, 2, 3], "float32")},
        "output": {**layer, "is_output_layer": True},
    }
    arrays = feed()
    result = run(network, arrays)["output"]
    np.testing.assert_allclose(result.value, expected(arrays["data"], WEIGHTS), rtol=1e-4, atol=1e-5)
    if layer["class"] == "reinterpret_data":
        assert template(network).dims == (OTHER, FEATURE)
        both = {**layer, "set_dim_tags": {FEATURE: OTHER, MARKED: FEATURE}}
        assert template({**network, "output": both}).dims == (FEATURE, OTHER)


def test_match_priority_of_a_dynamic_dim() -> None:
    """The marked dim has the lengths of the dim itself."""
    marked = TIME.copy(match_priority=1)
    network = {
        "marked": {"class": "reinterpret_data", "from": "data", "set_dim_tags": {TIME: marked}},
        "output": {"class": "reduce", "mode": "sum", "axis": TIME, "from": "marked"},
        "len": {"class": "length", "axis": marked, "from": "marked", "is_output_layer": True},
    }
    arrays = feed()
    layers = run(network, arrays)
    expected = [arrays["data"][b, :n].sum(0) for b, n in enumerate(LENS)]
    np.testing.assert_allclose(layers["output"].value, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(layers["len"].value, LENS)


def test_a_dim_that_a_tensor_has_twice() -> None:
    """The message names both and says how to mark one."""
    weights = {"class": "variable", "shape": (FEATURE, FEATURE)}
    reduce = {"class": "reduce", "mode": "sum", "axis": FEATURE, "from": "w"}
    with pytest.raises(ConfigError, match=r"Axis f=3 means more than one axis of \[S\|f=3, F\|f=3\].*match_priority=1"):
        template({"w": weights, "output": reduce})
    with pytest.raises(ConfigError, match="which out_shape lacks. It has this dim twice.*match_priority=1"):
        template({"output": {**weights, "out_shape": {FEATURE}}})


@pytest.mark.parametrize(
    "layer, marks",
    [
        ({"class": "range_in_axis", "from": "data", "axis": TIME}, [TIME, ImplicitDynSizeDim(batch_dim)]),
        ({"class": "reduce", "mode": "argmax", "axis": "F", "from": "data"}, [
            batch_dim, TIME, ImplicitSparseDim(FEATURE)]),
    ],
)  # fmt: skip
def test_marked_dims_in_out_shape(layer: Any, marks: Any) -> None:
    assert template({"output": {**layer, "out_shape": set(marks)}})


@pytest.mark.parametrize(
    "mark, match",
    [
        (ImplicitDynSizeDim(batch_dim), "implicit dim batch, but no lengths of the output .* depend on it"),
        (ImplicitSparseDim(FEATURE), "implicit dim f=3, but the values of the output .* are no labels of it"),
    ],
)
def test_marks_that_do_not_hold(mark: Any, match: str) -> None:
    layer = {"class": "reduce", "mode": "sum", "axis": "T", "from": "data"}
    fails({**layer, "out_shape": {batch_dim, FEATURE, mark}}, match)


@pytest.mark.parametrize(
    "layer, kinds",
    [
        ({"class": "activation", "activation": "tanh"}, "BTS"),
        ({"class": "combine", "kind": "add", "from": ["data", "v"]}, "BTS"),
        ({"class": "reduce", "mode": "sum", "axis": TIME}, "BS"),
        ({"class": "gather", "axis": TIME, "position": 0}, "BS"),
        ({"class": "split_dims", "axis": FEATURE, "dims": (SpatialDim("one", 1), OTHER)}, "BTSS"),
        ({"class": "stack", "from": ["data", "data"]}, "BTSS"),
        ({"class": "layer_norm", "in_dim": FEATURE}, "BTS"),
        ({"class": "eval", "eval": "source(0)", "out_type": {"dims": [batch_dim, TIME, FEATURE]}}, "BTS"),
        ({"class": "linear", "activation": None, "in_dim": FEATURE, "n_out": 4}, "BTF"),  # a layer may mark one
        ({"class": "reinterpret_data", "set_axes": {"F": FEATURE}}, "BTF"),
    ],
)
def test_dims_without_version_mark_nothing(layer: Any, kinds: str) -> None:
    """Results have marks only where a layer makes a feature axis or is told to mark one."""
    network = {
        "v": {"class": "variable", "shape": [FEATURE]},
        "output": {"from": "data", **layer},
    }
    data = template(network, extern_data={"data": {"dims": (batch_dim, TIME, FEATURE)}})
    assert "".join(sorted(data.axis_kinds)) == "".join(sorted(kinds)) and data.time_axis is None


@pytest.mark.parametrize("layer", [
    {"class": "linear", "activation": None, "n_out": 4}, {"class": "softmax", "n_out": 4}, {"class": "layer_norm"},
    {"class": "reduce", "mode": "sum", "axis": "T"}, {"class": "reduce", "mode": "sum", "axis": "F"},
])  # fmt: skip
def test_what_needs_a_mark(layer: Any) -> None:
    extern_data = {"data": {"dims": (batch_dim, TIME, FEATURE)}}
    match = (
        "has no (time|feature) axis.*reinterpret_data or, for data that extern_data declares by 'dims', by 'version'"
    )
    fails({"from": "data", **layer}, match, extern_data=extern_data)


@pytest.mark.parametrize("layer", [
    {"class": "linear", "activation": None, "with_bias": False, "n_out": 4},
    {"class": "linear", "activation": None, "with_bias": False, "out_dim": FeatureDim("out", 4)},
])  # fmt: skip
def test_in_dim_of_labels(layer: Any) -> None:
    """It is the dim of the labels, as features of a one-hot vector would have it."""
    labels = FeatureDim("labels", 5)
    net = net_of(
        {"output": {**layer, "from": "labels", "in_dim": labels}, "labels": {"class": "copy", "from": "data:labels"}},
        extern_data={"labels": {"dims": (batch_dim, TIME), "sparse_dim": labels}},
    )
    arrays = {key: value for key, value in feed().items() if key.startswith("labels")}
    result = net.run(arrays).layers["output"]
    np.testing.assert_array_equal(_frames(result.value), net.get_param_values()["output/W"][_frames(arrays["labels"])])
