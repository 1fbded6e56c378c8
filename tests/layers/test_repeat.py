"""`repeat`, `tile`, `tile_features`, `stack`, `concat` against numpy."""

import numpy as np
import pytest

from returnn_tf.tensor import FeatureDim, SpatialDim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, gradient, output, run, template


@pytest.mark.parametrize("axis,number", [("T", 1), ("F", 2), (STATIC, 2)])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_repeat_by_a_number(axis, number, count):
    source = "data:wide" if axis is STATIC else "data"
    """The repeated axis is the first one after the batch axis."""
    result = output({"class": "repeat", "repetitions": count, "axis": axis, "from": source})
    expected = np.repeat(feed()[source.rpartition(":")[2]], count, number)
    np.testing.assert_array_equal(result.value, np.moveaxis(expected, number, 1))
    if axis != "T":
        np.testing.assert_array_equal(result.sizes[2], LENS)
    elif count:  # otherwise the axis has the size 0
        np.testing.assert_array_equal(result.sizes[1], LENS * count)


@pytest.mark.parametrize("source", ["data", "data:wide", "data:labels"])
@pytest.mark.parametrize("counts", ["data:ints", "data:numbers"])
def test_repeat_by_a_layer(source, counts):
    result = output({"class": "repeat", "repetitions": counts, "axis": TIME, "from": source})
    x, n = feed()[source.rpartition(":")[2]], feed()[counts[5:]]
    expected = [np.repeat(x[b, : LENS[b]], n[b, : LENS[b]] if n.ndim == 2 else n[b], axis=0) for b in range(3)]
    np.testing.assert_array_equal(result.sizes[1], [len(e) for e in expected])
    for b in range(3):
        np.testing.assert_array_equal(result.value[b, : len(expected[b])], expected[b])
        assert (result.value[b, len(expected[b]) :] == 0).all()


def test_repeat_of_a_static_axis_by_a_layer():
    result = output({"class": "repeat", "repetitions": "data:numbers", "axis": STATIC, "from": "data:wide"})
    assert result.axes == ("B", "T", "T", "F")
    np.testing.assert_array_equal(result.sizes[1], 2 * feed()["numbers"])
    np.testing.assert_array_equal(result.value[2], np.repeat(feed()["wide"][2], 2, axis=1).swapaxes(0, 1))


def test_repeat_nothing_at_all():
    arrays = feed(ints=np.zeros([3, 4], "int32"))
    assert output({"class": "repeat", "repetitions": "data:ints", "from": "data"}, arrays).value.shape == (3, 0, 3)


def test_repeat_gradient():
    x, n = feed()["data"], feed()["ints"]
    expected = sum(2 * x[b, t] * n[b, t] for b in range(3) for t in range(LENS[b]))
    got = gradient({"class": "repeat", "repetitions": "data:ints", "axis": "T", "from": "a"})
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_repeat_dims():
    n = SpatialDim("n")
    assert template({"output": {"class": "repeat", "repetitions": 2, "out_dim": n, "from": "data"}}).dims[1] is TIME * 2
    layer = {"class": "repeat", "repetitions": "data:ints", "out_dim": n, "from": "data"}
    assert template({"output": layer}).time_dim is n


@pytest.mark.parametrize(
    "options,message",
    [
        ({"repetitions": "data:other"}, "repetitions must be integers per sequence or per frame"),
        ({"repetitions": -1}, "repetitions must not be negative, got -1"),
        ({"repetitions": 2, "axis": "B"}, "the batch axis can't be repeated"),
    ],
)
def test_repeat_errors(options, message):
    fails({"class": "repeat", "from": "data", **options}, message)


def test_tile():
    result = output({"class": "tile", "multiples": {"F": 3, STATIC: 2}, "from": "data:wide"})
    np.testing.assert_array_equal(result.value, np.tile(feed()["wide"], (1, 1, 2, 3)))
    out = FeatureDim("out", 6)
    layer = {"class": "tile", "multiples": {"F": 2}, "out_dims": {"F": out}, "from": "data"}
    assert template({"output": layer}).feature_dim is out
    fails({"class": "tile", "multiples": {"T": 2}, "from": "data"}, "only static axes can be tiled")


def test_tile_features():
    result = output({"class": "tile_features", "repetitions": 2, "from": "data"})
    np.testing.assert_array_equal(result.value, np.tile(feed()["data"], (1, 1, 2)))


@pytest.mark.parametrize(
    "options,axis,axes", [({}, 2, "B,T,S,F"), ({"axis": 1}, 1, "B,S,T,F"), ({"axis": -1}, 3, "B,T,F,S")]
)
def test_stack(options, axis, axes):
    net = {
        "a": {"class": "eval", "eval": "source(0) * 2", "from": "data"},
        "output": {"class": "stack", "from": ["data", "a", "data"], **options},
    }
    result, x = run(net)["output"], feed()["data"]
    assert ",".join(result.axes) == axes
    np.testing.assert_array_equal(result.value, np.stack([x, 2 * x, x], axis))


@pytest.mark.parametrize("axis, axes", [(-1, "B,T,S,F"), (3, "B,T,S,F"), (2, "B,T,S,F"), (1, "B,S,T,F")])
@pytest.mark.parametrize("behavior_version", [0, 21])
def test_stack_behind_features_of_no_declared_dim_makes_the_feature_axis(axis, axes, behavior_version):
    net = {
        "a": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"},
        "b": {"class": "eval", "eval": "1. - source(0)", "from": "a"},
        "output": {"class": "stack", "from": ["a", "b"], "axis": axis},
    }
    result = run({**net, "a": {**net["a"], "is_output_layer": True}}, behavior_version=behavior_version)
    assert ",".join(result["output"].axes) == axes
    a = result["a"].value
    np.testing.assert_allclose(result["output"].value, np.stack([a, 1 - a], axis), rtol=1e-6)


def test_stack_repeats_missing_axes():
    net = {
        "first": {"class": "gather", "axis": "T", "position": 0, "from": "data"},
        "output": {"class": "stack", "out_spatial_dim": SpatialDim("n", 2), "from": ["data", "first"]},
    }
    x = feed()["data"]
    np.testing.assert_array_equal(run(net)["output"].value[:, :, 1], np.broadcast_to(x[:, :1], x.shape))
    fails({"class": "stack", "from": ["data", "data:ints"]}, "the sources have different dtypes: float32, int32")
    fails({"class": "stack", "out_spatial_dim": SpatialDim("n", 3), "from": ["data"]}, "does not match, the result has")


@pytest.mark.parametrize(
    "sources,axes,expected",
    [
        ([("data", "F"), ("data", "F")], "B,T,F", lambda f: np.concatenate([f["data"]] * 2, 2)),
        ([["data", "F"], ["data", "F"]], "B,T,F", lambda f: np.concatenate([f["data"]] * 2, 2)),
        ([("data", "T"), ("data:other", "T")], "B,T,F", lambda f: np.concatenate([f["data"], f["other"]], 1)),
        ([("data:wide", STATIC)] * 3, "B,T,S,F", lambda f: np.concatenate([f["wide"]] * 3, 2)),
        ([("data:labels", "T")] * 2, "B,T", lambda f: np.concatenate([f["labels"]] * 2, 1)),
    ],
)
def test_concat(sources, axes, expected):
    result = output({"class": "concat", "from": sources})
    assert ",".join(result.axes) == axes
    np.testing.assert_array_equal(result.value, expected(feed()))
    np.testing.assert_array_equal(result.sizes[1], LENS * (2 if sources[0][1] == "T" else 1))


def test_concat_of_another_axis_order_and_broadcast():
    net = {
        "t": {"class": "swap_axes", "axis1": "B", "axis2": "T", "from": "data"},
        "first": {"class": "gather", "axis": "T", "position": 0, "from": "data"},
        "output": {"class": "concat", "allow_broadcast": True, "from": [("data", "F"), ("t", "F"), ("first", "F")]},
    }
    x = feed()["data"]
    expected = np.concatenate([x, x, np.broadcast_to(x[:, :1], x.shape)], 2)
    np.testing.assert_array_equal(run(net)["output"].value, expected)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dim, axis", [(STATIC, 1), (FEATURE, 2)])
def test_concat_of_a_source_without_batch(first, dim, axis):
    """It is repeated for all sequences; the batch axis comes first."""
    value = np.arange(6, dtype="float32").reshape(2, 3)
    network = {
        "x": {"class": "reduce", "mode": "sum", "axis": TIME, "from": "data:wide", "is_output_layer": True},
        "w": {"class": "variable", "shape": (STATIC, FEATURE), "init": value},
    }
    pairs = [("w", dim), ("x", dim)]
    network["output"] = {"class": "concat", "from": pairs if first else pairs[::-1]}
    layers = run(network)
    assert layers["output"].axes == ("B", "S", "F")
    parts = [np.broadcast_to(value, (3, 2, 3)), layers["x"].value]
    np.testing.assert_allclose(layers["output"].value, np.concatenate(parts if first else parts[::-1], axis), rtol=1e-5)


def test_concat_gradient_and_dim():
    got = gradient({"class": "concat", "from": [("a", "F"), ("data:wide", STATIC)][:1] + [("data", "F")]})
    mask = (np.arange(4) < LENS[:, None])[:, :, None]
    np.testing.assert_allclose(got, (2 * feed()["data"] * mask).sum((0, 1)), rtol=1e-5)
    out = FeatureDim("out", 6)
    assert template({"output": {"class": "concat", "out_dim": out, "from": [("data", "F")] * 2}}).feature_dim is out


@pytest.mark.parametrize(
    "sources,message",
    [
        (["data", "data"], r"'from' must hold pairs \(layer, axis\)"),
        ([("data", "F"), ("data:ints", "T")], "the sources must have one dtype"),
        (
            [("data", "F"), ("data:other", "F")],
            "the sources .* have different axes besides the concatenated ones: .*time",
        ),
        ([("data", "X"), ("data", "F")], "Axis 'X' is not a known name"),
    ],
)
def test_concat_errors(sources, message):
    fails({"class": "concat", "from": sources}, message)
