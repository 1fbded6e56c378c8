"""`constant`, `cast`, `length`, `range*`, `train_flag`, `global_train_step`, `print`."""

import numpy as np
import pytest

from returnn_tf.config import Config
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, net_of, output, run, template


@pytest.mark.parametrize(
    "options,axes,dtype,shape",
    [
        ({"value": 2}, "", "int32", ()),
        ({"value": 2.5}, "", "float32", ()),
        ({"value": True}, "", "bool", ()),
        ({"value": 2, "dtype": "float32"}, "", "float32", ()),
        ({"value": 1, "with_batch_dim": True}, "B", "int32", (3,)),
        ({"value": np.arange(3, dtype="int64")}, "F", "int64", (3,)),
        ({"value": np.ones([2, 3])}, "S,F", "float64", (2, 3)),
        ({"value": 0.5, "shape": [4]}, "F", "float32", (4,)),
        ({"value": 0.5, "shape": [STATIC, FEATURE]}, "S,F", "float32", (2, 3)),
        ({"value": 0.5, "shape": [STATIC, FEATURE], "feature_dim": STATIC}, "F,S", "float32", (2, 3)),
        ({"value": 3, "shape": [batch_dim, TIME], "sparse_dim": FeatureDim("l", 5)}, "B,T", "int32", (3, 4)),
        ({"value": 3, "shape": [TIME, FEATURE], "with_batch_dim": True}, "B,T,F", "int32", (3, 4, 3)),
        ({"value": np.arange(3.0), "shape": [FEATURE], "with_batch_dim": True}, "B,F", "float64", (3, 3)),
    ],
)
def test_constant(options, axes, dtype, shape):
    result = output({"class": "constant", **options})
    assert ",".join(result.axes) == axes
    assert result.value.dtype == dtype
    np.testing.assert_array_equal(result.value, np.broadcast_to(options["value"], shape))
    if "T" in axes:
        np.testing.assert_array_equal(result.sizes[1], LENS)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"value": object()}, "option 'value' must be a number, True, False, a string or an array, got"),
        ({"value": np.zeros(3), "shape": [STATIC]}, r"the value has the shape \(3,\), but the option 'shape' says"),
        ({"value": 1, "shape": [SpatialDim("unknown")]}, "the lengths of the dim unknown are not known here"),
        ({"value": 1, "dtype": "float"[:2]}, "does not fit dtype 'fl'"),
        ({"value": 1, "from": "data"}, "takes no sources"),
    ],
)
def test_constant_errors(options, message):
    fails({"class": "constant", **options}, message)


@pytest.mark.parametrize("dtype", ["int32", "float64", "bool", "int64"])
def test_cast(dtype):
    result = output({"class": "cast", "dtype": dtype, "from": "data"})
    assert result.value.dtype == dtype
    np.testing.assert_array_equal(result.value, feed()["data"].astype(dtype))


def test_cast_of_labels():
    layer = {"class": "cast", "from": "data:labels"}
    assert template({"output": {**layer, "dtype": "int64"}}).sparse_dim.size == 5
    data = template({"output": {**layer, "dtype": "float32"}})
    assert not data.sparse and data.feature_axis is None
    fails({**layer, "dtype": "float"}, "option 'dtype' is 'float'. Did you mean 'float")


@pytest.mark.parametrize(
    "options,axes,expected",
    [
        ({}, "B", LENS),
        ({"axis": TIME, "dtype": "float32"}, "B", LENS),
        ({"sparse": True}, "B", LENS),
        ({"add_time_axis": True}, "B,S", LENS[:, None]),
        ({"axis": "F"}, "", 3),
        ({"axis": "B"}, "", 3),
        ({"axis": "F", "dtype": "float32"}, "", 3.0),
    ],
)
def test_length(options, axes, expected):
    result = output({"class": "length", "from": "data", **options})
    assert ",".join(result.axes) == axes
    assert result.value.dtype == options.get("dtype", "int32")
    np.testing.assert_array_equal(result.value, expected)


def test_length_template():
    data = template({"output": {"class": "length", "sparse": True, "from": "data"}})
    assert data.sparse_dim is TIME
    fails({"class": "length", "axis": "dim:9", "from": "data"}, "means no axis")


@pytest.mark.parametrize(
    "limit,start,delta,dtype",
    [(5, 0, 1, "int32"), (7, 1, 2, "int32"), (0, 5, -2, "int32"), (2, 0, 0.5, "float32"), (3, 5, 1, "int32")],
)
def test_range(limit, start, delta, dtype):
    result = output({"class": "range", "limit": limit, "start": start, "delta": delta})
    assert result.axes == ("F",) and result.value.dtype == dtype
    np.testing.assert_allclose(result.value, np.arange(start, limit, delta))


def test_range_options():
    dim = SpatialDim("r", 4)
    data = template(
        {"output": {"class": "range", "limit": 4, "sparse": True, "dtype": "int64", "out_spatial_dim": dim}}
    )
    assert data.dims == (dim,) and data.dim == 4 and data.dtype == "int64" and data.feature_axis is None
    fails({"class": "range", "limit": 3, "delta": 0}, "delta must not be 0")
    fails({"class": "range", "limit": 3, "out_spatial_dim": dim}, "the declared dim .* does not match")


@pytest.mark.parametrize("axis,axes,size", [("T", "T", 4), ("F", "F", 3), ("B", "B", 3), (STATIC, "F", 2)])
def test_range_in_axis(axis, axes, size):
    result = output({"class": "range_in_axis", "axis": axis, "from": "data:wide"})
    assert result.axes == (axes,)
    np.testing.assert_array_equal(result.value, np.arange(size))
    if axis == "T":
        np.testing.assert_array_equal(result.sizes[0], LENS)


def test_range_in_axis_options():
    layer = {"class": "range_in_axis", "axis": "T", "from": "data"}
    assert template({"output": {**layer, "sparse": True}}).sparse_dim is TIME
    assert output({**layer, "dtype": "float32", "keepdims": False}).value.dtype == "float32"
    fails({**layer, "keepdims": True}, "option 'keepdims' is not supported: the output has the one axis only")
    fails({**layer, "unbroadcast": True}, "option 'unbroadcast' is not supported: the output has the one axis only")


def test_range_from_length():
    dim = SpatialDim("n")
    net = {
        "r": {"class": "range_from_length", "out_spatial_dim": dim, "from": "data:numbers"},
        "output": {"class": "length", "axis": dim, "from": "r"},
    }
    result = run(net, {**feed()})
    np.testing.assert_array_equal(result["output"].value, feed()["numbers"])
    result = output({"class": "range_from_length", "from": "data:numbers"})
    np.testing.assert_array_equal(result.value, [0, 1])
    np.testing.assert_array_equal(result.sizes[0], feed()["numbers"])


def test_range_from_length_of_a_known_axis():
    """The range has the axis whose lengths these are, so that it fits the data."""
    net = {
        "l": {"class": "length", "from": "data"},
        "r": {"class": "range_from_length", "dtype": "float32", "from": "l"},
        "output": {"class": "combine", "kind": "add", "from": ["data", "r"]},
    }
    np.testing.assert_allclose(run(net)["output"].value, feed()["data"] + np.arange(4)[None, :, None])
    fails({"class": "range_from_length", "from": "data"}, "the source holds lengths, i.e. integers")


@pytest.mark.parametrize("train", [True, False])
def test_train_flag(train):
    result = output({"class": "train_flag"}, train=train)
    assert result.value == train and result.axes == ()


def test_global_train_step():
    layers = {"output": {"class": "global_train_step", "from": []}}
    layers["p"] = {"class": "linear", "n_out": 1, "from": "data", "loss": "as_is"}
    net = net_of(layers, train=True)
    trainer = StepTrainer(net, Config({"learning_rate": 0.1}))
    for step in range(3):
        result = net.run(feed()).layers["output"].value
        assert result == step and result.dtype == "int64"
        trainer.step(feed())


def test_print(capfd):
    layer = {"class": "print", "summarize": 1, "extra_print_args": ["hello"], "from": "data"}
    np.testing.assert_array_equal(output(layer).value, feed()["data"])
    text = capfd.readouterr().err
    assert text.startswith("output: hello shape [3 ... 3] [[[%.4f" % feed()["data"][0, 0, 0]) and "..." in text


@pytest.mark.parametrize("of_all", [False, True])
def test_print_of_layers(capfd, of_all):
    """Option and setting print what layers give, also where it would be computed together with the next one."""
    hidden = {"class": "linear", "activation": None, "n_out": 2, "from": "data"}
    layers = {"hidden": hidden, "output": {"class": "softmax", "n_out": 2, "from": "hidden"}}
    config = {"debug_print_layer_output": True} if of_all else {}
    hidden.update({} if of_all else {"debug_print_layer_output": True})
    net = net_of(layers, **config)
    net.run(feed())
    assert ("output: shape [3 4 2]" in capfd.readouterr().err) == of_all
    hidden = net.run(feed(), fetch=["hidden"]).layers["hidden"].value
    assert capfd.readouterr().err.startswith("hidden: shape [3 4 2] [[[%.9g" % hidden[0, 0, 0])
