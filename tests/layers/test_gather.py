"""`gather`, `gather_nd` and `scatter_nd` against numpy."""

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.tensor import SpatialDim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, config_of, fails, feed, gradient, net_of, output, run

ROWS = np.arange(3)


def x_of(source):
    return feed()[source.rpartition(":")[2]]


@pytest.mark.sampled
@pytest.mark.parametrize("version", [0, 10, 11, 21])
@pytest.mark.parametrize(
    "source,axis,position,axes,expected",
    [
        ("data", "T", 1, "B,F", lambda x, f: x[:, 1]),
        ("data", "F", 2, "B,T", lambda x, f: x[:, :, 2]),
        ("data:wide", "F", 0, "B,T,F", lambda x, f: x[..., 0]),
        ("data:wide", STATIC, 1, "B,T,F", lambda x, f: x[:, :, 1]),
        ("data", "T", "data:numbers", "B,F", lambda x, f: x[ROWS, f["numbers"]]),
        ("data:labels", "T", "data:numbers", "B", lambda x, f: x[ROWS, f["numbers"]]),
        ("data:wide", "T", "data:numbers", "B,S,F", lambda x, f: x[ROWS, f["numbers"]]),
        ("data", TIME, "data:ints", "B,T,F", lambda x, f: x[ROWS[:, None], f["ints"]]),
        (
            "data:wide", STATIC, "data:ints", "B,T,F",
            lambda x, f: x[ROWS[:, None], np.arange(4)[None], f["ints"] % 2],
        ),
    ],
)  # fmt: skip
def test_gather(source, axis, position, axes, expected, version):
    arrays = feed()
    if axis is STATIC and position == "data:ints":
        arrays["ints"] = arrays["ints"] % 2
    layer = {"class": "gather", "axis": axis, "position": position, "from": source}
    result = output(layer, arrays, behavior_version=version)
    assert ",".join(result.axes) == axes
    np.testing.assert_array_equal(result.value, expected(x_of(source), feed()))


def test_axes_of_the_position_take_the_place_of_the_axis():
    k = SpatialDim("k", 2)
    net = {
        "p": {"class": "constant", "value": np.array([2, 0], "int32"), "shape": [k]},
        "output": {"class": "gather", "axis": "T", "position": "p", "from": "data:wide"},
    }
    result = run(net)["output"]
    assert result.axes == ("B", "S", "S", "F")
    np.testing.assert_array_equal(result.value, feed()["wide"][:, [2, 0]])


def test_clip_to_valid_uses_the_lengths():
    net = {
        "p": {"class": "constant", "value": 9},
        "a": {"class": "gather", "axis": "T", "position": "p", "clip_to_valid": True, "from": "data"},
        "q": {"class": "eval", "eval": "source(0) * 9 - 5", "from": "data:numbers"},
        "b": {"class": "gather", "axis": "T", "position": "q", "clip_to_valid": True, "from": "data"},
        "c": {"class": "gather", "axis": "T", "position": 9, "clip_to_valid": True, "from": "data"},
        "d": {"class": "gather", "axis": "F", "position": 9, "clip_to_valid": True, "from": "data"},
    }
    net.update(output={"class": "copy", "from": "a"})
    for name in "abcd":
        net[name]["is_output_layer"] = True
    result, x = run(net), feed()["data"]
    for name in "ac":
        np.testing.assert_array_equal(result[name].value, x[ROWS, LENS - 1])
    positions = np.clip(feed()["numbers"] * 9 - 5, 0, LENS - 1)
    np.testing.assert_array_equal(result["b"].value, x[ROWS, positions])
    np.testing.assert_array_equal(result["d"].value, x[..., 2])


@pytest.mark.parametrize("version,shape", [(10, (3, 3)), (11, (3, 1, 3))])
def test_axes_of_size_one(version, shape):
    """Before behavior version 11, a feature axis of size 1 matches any feature axis."""
    net = {
        "p": {"class": "expand_dims", "axis": "F", "from": "data:numbers"},
        "output": {"class": "gather", "axis": "T", "position": "p", "from": "data"},
    }
    result = run(net, behavior_version=version)["output"]
    np.testing.assert_array_equal(result.value, feed()["data"][ROWS, feed()["numbers"]].reshape(shape))


def test_garbage_in_padded_positions():
    arrays = feed(ints=np.array([[3, 2, 1, 0], [1, 0, 99, -7], [2, 1, 0, 99]]))
    result = output({"class": "gather", "axis": TIME, "position": "data:ints", "from": "data"}, arrays)
    for b, length in enumerate(LENS):
        np.testing.assert_array_equal(result.value[b, :length], arrays["data"][b, arrays["ints"][b, :length]])


def test_gradients():
    x, f = feed()["data"], feed()
    got = gradient({"class": "gather", "axis": "T", "position": "data:numbers", "from": "a"})
    np.testing.assert_allclose(got, (2 * x[ROWS, f["numbers"]]).sum(0), rtol=1e-5)
    got = gradient({"class": "gather_nd", "position": "data:numbers", "from": "a"})
    np.testing.assert_allclose(got, (2 * x[ROWS, f["numbers"]]).sum(0), rtol=1e-5)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"axis": "F", "position": 3}, "position 3 is not in the axis"),
        ({"axis": "T", "position": -1}, "position -1 is not in the axis"),
        ({"axis": "T", "position": "data"}, "position must hold integers, but layer 'data' is"),
        ({"axis": "dim:7", "position": 0}, "Axis 'dim:7' means no axis"),
    ],
)
def test_errors(options, message):
    fails({"class": "gather", "from": "data", **options}, message)


@pytest.mark.parametrize(
    "position,axes,index",
    [("data:numbers", "B,F", lambda f: f["numbers"]), ("data:ints", "B,T,F", lambda f: f["ints"])],
)
def test_gather_nd(position, axes, index):
    result = output({"class": "gather_nd", "position": position, "from": "data"})
    assert ",".join(result.axes) == axes
    at = index(feed())
    np.testing.assert_array_equal(result.value, feed()["data"][ROWS.reshape([-1] + [1] * (at.ndim - 1)), at])


def test_gather_nd_same_for_all():
    net = {"p": {"class": "constant", "value": 2}, "output": {"class": "gather_nd", "position": "p", "from": "data"}}
    np.testing.assert_array_equal(run(net)["output"].value, feed()["data"][:, 2])


def scattered(x, positions, size):
    y = np.zeros((3, size) + x.shape[2:], x.dtype)
    for b in range(3):
        for t in range(4):
            if 0 <= positions[b, t] < size:
                y[b, positions[b, t]] += x[b, t]
    return y


SCATTER = {"class": "scatter_nd", "position": "data:ints", "position_axis": "T"}


@pytest.mark.parametrize("source", ["data", "data:wide"])
def test_scatter(source):
    layer = {**SCATTER, "output_dim_via_time_from": "data:other", "from": source}
    result = output(layer)
    assert result.axes[:2] == ("B", "T")
    np.testing.assert_allclose(result.value, scattered(x_of(source), feed()["ints"], 4), rtol=1e-6)


def test_scatter_drops_what_is_outside():
    arrays = feed(ints=np.array([[0, 1, 2, -1], [4, 3, 2, 1], [-5, 0, 0, 9]]))
    layer = {**SCATTER, "out_spatial_dim": SpatialDim("o", 3), "filter_invalid_indices": True, "from": "data"}
    result = output(layer, arrays)
    assert result.axes == ("B", "S", "F")
    np.testing.assert_allclose(result.value, scattered(arrays["data"], arrays["ints"], 3), rtol=1e-6)


def test_scatter_outside_is_an_error():
    arrays = feed(ints=np.array([[0, 1, 2, 0], [7, 0, 0, 0], [0, 0, 0, 0]]))
    with pytest.raises(Exception, match="out of range"):
        output({**SCATTER, "output_dim_via_time_from": "data:other", "from": "data"}, arrays)


def test_scatter_single_entry():
    """A number and a position per sequence, with an axis of size 1: a one-hot vector over another time axis."""
    net = {
        "p": {"class": "expand_dims", "axis": "spatial", "from": "data:numbers"},
        "one": {"class": "eval", "eval": "tf.cast(source(0) * 0 + 1, 'float32')", "from": "data:numbers",
                "out_type": {"dtype": "float32"}},
        "output": {"class": "scatter_nd", "position": "p", "position_axis": "static:-1",
                   "output_dim_via_time_from": "data", "from": "one"},
    }  # fmt: skip
    result = run(net, behavior_version=0)["output"]
    assert result.axes == ("B", "T")
    np.testing.assert_array_equal(result.value, np.eye(4)[feed()["numbers"]])


def test_scatter_gradient():
    layer = {**SCATTER, "output_dim_via_time_from": "data", "from": "a"}
    x, positions = feed()["data"], feed()["ints"]
    y = scattered(x, positions, 4)
    mask = np.arange(4) < LENS[:, None]
    expected = sum(2 * y[b, positions[b, t]] * mask[b, positions[b, t]] for b in range(3) for t in range(4))
    np.testing.assert_allclose(gradient(layer), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "options,message",
    [
        ({}, "give one of output_dim_via_time_from and out_spatial_dim"),
        ({"output_dim_via_time_from": "data:numbers"}, "layer 'data:numbers' has no time axis"),
        ({"position": "data", "out_spatial_dim": FEATURE}, "position must hold integers"),
    ],
)
def test_scatter_errors(options, message):
    fails({**SCATTER, "from": "data", **options}, message)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("gather", [{"class": "gather", "axis": "T"}, {"class": "gather_nd"}])
def test_positions_of_ended_sequences_do_not_matter(search, gather):
    """As in a transducer which goes through the frames at its own pace: it ends behind the last one."""
    unit = {
        "x": {**gather, "from": "base:data", "position": "prev:t"},
        "t": {"class": "combine", "kind": "add", "from": ["prev:t", "base:data:numbers"], "initial_output": 0},
        "end": {"class": "compare", "kind": "greater_equal", "from": ["t", "base:len"]},
        "output": {"class": "copy", "from": "x"},
    }
    if search:
        prob = {"class": "softmax", "target": "labels", "from": "x"}
        choice = {"class": "choice", "target": "labels", "beam_size": 2, "from": "prob", "initial_output": 0}
        step = {"class": "eval", "eval": "source(0) + 0 * source(1)", "from": ["base:data:numbers", "output"]}
        unit.update(prob=prob, output=choice, step=step)
        unit["t"]["from"] = ["prev:t", "step"]
    network = {
        "len": {"class": "length", "from": "data"},
        "output": {"class": "rec", "from": [], "unit": unit, "include_eos": True, "max_seq_len": 9},
    }
    net = Network.from_config(config_of(network), search=search)
    arrays = feed(numbers=[1, 7, 2])
    found = net.run(arrays).layers["output"]
    assert found.sizes[1][:: 2 if search else 1].tolist() == [4, 1, 2]
    if not search:
        for b, frames in enumerate([[0, 1, 2, 3], [0], [0, 2]]):
            np.testing.assert_allclose(found.value[b, : len(frames)], arrays["data"][b, frames])


def test_gradient_without_sequences():
    """Of one frame of all sequences."""
    network = {
        "bias": {"class": "variable", "shape": [FEATURE]},
        "x": {"class": "combine", "kind": "add", "from": ["data", "bias"]},
        "output": {"class": "gather", "axis": "T", "position": 1, "from": "x", "loss": "as_is"},
    }
    arrays = {key: value[:0] for key, value in feed().items()}
    found = net_of(network).run(arrays, with_grad=True)
    assert found.layers["output"].value.shape == (0, 3) and not found.grads["bias/bias"].any()
