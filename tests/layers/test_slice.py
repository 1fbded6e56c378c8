"""`slice` and `slice_nd` against numpy, sequence by sequence."""

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim
from tests.layers.nets import LENS, STATIC, fails, feed, gradient, output, run, template


@pytest.mark.parametrize(
    "start,end,step", [(1, None, None), (None, 2, None), (None, -1, None), (None, None, -1), (0, 3, 2), (2, None, -1)]
)
def test_static_axis(start, end, step):
    layer = {"class": "slice", "axis": "F", "slice_start": start, "slice_end": end, "slice_step": step, "from": "data"}
    result = output(layer)
    assert result.axes == ("B", "T", "F")
    np.testing.assert_array_equal(result.value, feed()["data"][:, :, start:end:step])


@pytest.mark.parametrize(
    "start,end,step",
    [(1, None, None), (3, None, None), (None, -1, None), (1, -1, None), (None, None, 2), (1, -1, 2), (None, None, 3)],
)
def test_dynamic_axis(start, end, step):
    layer = {"class": "slice", "axis": "T", "slice_start": start, "slice_end": end, "slice_step": step, "from": "data"}
    result, x = output(layer), feed()["data"]
    for b, length in enumerate(LENS):
        expected = x[b, :length][start:end:step]
        assert result.sizes[1][b] == len(expected)
        np.testing.assert_array_equal(result.value[b, : len(expected)], expected)


@pytest.mark.parametrize("step", [-1, -2])
def test_reverse_by_sequence(step):
    result, x = output({"class": "slice", "axis": "T", "slice_step": step, "from": "data"}), feed()["data"]
    for b, length in enumerate(LENS):
        expected = x[b, :length][::step]
        assert result.sizes[1][b] == len(expected)
        np.testing.assert_array_equal(result.value[b, : len(expected)], expected)


@pytest.mark.parametrize("start,end,step", [(0, 2, 1), (1, 3, 1), (0, 7, 1), (1, 6, 2)])
def test_fixed_end_makes_a_static_axis(start, end, step):
    layer = {"class": "slice", "axis": "T", "slice_start": start, "slice_end": end, "slice_step": step, "from": "data"}
    result = output(layer)
    assert result.axes == ("B", "S", "F")
    x = np.pad(feed()["data"], [(0, 0), (0, 8), (0, 0)])
    np.testing.assert_array_equal(result.value, x[:, start:end:step])


def test_declared_dim_stands_for_the_result():
    cut = SpatialDim("cut")
    net = {
        "s": {"class": "slice", "axis": "T", "slice_start": 1, "out_dim": cut, "from": "data"},
        "output": {"class": "range_in_axis", "axis": cut, "from": "s"},
    }
    np.testing.assert_array_equal(run(net)["output"].sizes[0], LENS - 1)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"axis": "F", "slice_start": -1}, "slice_start must not be negative"),
        ({"axis": "T", "slice_start": -1}, "slice_start must not be negative"),
        ({"axis": "T", "slice_start": 1, "slice_step": -1}, "a negative slice_step must come alone"),
        ({"axis": "F", "slice_step": 0}, "slice_step must not be 0"),
        ({"axis": "B", "slice_start": 1}, "the batch axis can't be sliced"),
    ],
)
def test_errors(options, message):
    fails({"class": "slice", "from": "data", **options}, message)


def nd_by_loops(x, starts, size):
    y = np.zeros((len(x), size) + x.shape[2:], x.dtype)
    for b, start in enumerate(starts):
        part = x[b, : LENS[b]][start : start + size]
        y[b, : len(part)] = part
    return y


@pytest.mark.parametrize("source", ["data", "data:wide", "data:labels"])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_nd_fixed_size(source, size):
    result = output({"class": "slice_nd", "start": "data:numbers", "size": size, "from": source})
    x = feed()[source.replace("data:", "") if source != "data" else "data"]
    assert result.axes[:2] == ("B", "S")
    np.testing.assert_array_equal(result.value, nd_by_loops(x, feed()["numbers"], size))


@pytest.mark.parametrize("min_size", [None, 2])
def test_nd_until_the_end(min_size):
    result = output({"class": "slice_nd", "start": "data:numbers", "size": None, "min_size": min_size, "from": "data"})
    lens = np.maximum(LENS - feed()["numbers"], min_size or 0)
    np.testing.assert_array_equal(result.sizes[1], lens)
    np.testing.assert_array_equal(result.value, nd_by_loops(feed()["data"], feed()["numbers"], lens.max()))


@pytest.mark.parametrize("min_size,lens", [(None, [1, 0, 0]), (1, [1, 1, 1]), (2, [2, 2, 2])])
def test_nd_fixed_start(min_size, lens):
    result = output({"class": "slice_nd", "start": 3, "size": None, "min_size": min_size, "from": "data"})
    np.testing.assert_array_equal(result.sizes[1], lens)
    np.testing.assert_array_equal(result.value[:, :1], feed()["data"][:, 3:])


def test_nd_sizes_of_a_layer():
    net = {
        "n": {"class": "eval", "eval": "source(0) + 1", "from": "data:numbers"},
        "output": {"class": "slice_nd", "start": "data:numbers", "size": "n", "from": "data"},
    }
    result, sizes = run(net)["output"], feed()["numbers"] + 1
    np.testing.assert_array_equal(result.sizes[1], sizes)
    expected = nd_by_loops(feed()["data"], feed()["numbers"], 3)
    expected[np.arange(3) >= sizes[:, None]] = 0
    np.testing.assert_array_equal(result.value, expected)


def test_nd_start_per_frame():
    """[B, T] starts: [B, T, size, F]."""
    result = output({"class": "slice_nd", "start": "data:ints", "size": 2, "from": "data:other"})
    assert result.axes == ("B", "T", "S", "F")
    starts, x = feed()["ints"], feed()["other"]
    for t in range(4):
        np.testing.assert_array_equal(result.value[:, t], nd_by_loops(x, starts[:, t], 2))


def test_nd_other_axis():
    layer = {"class": "slice_nd", "start": "data:numbers", "size": 2, "axis": STATIC, "from": "data:wide"}
    result, x = output(layer), feed()["wide"]
    for b, start in enumerate(feed()["numbers"]):
        part = x[b, :, start : start + 2]
        np.testing.assert_array_equal(result.value[b, :, : part.shape[1]], part)
        assert (result.value[b, :, part.shape[1] :] == 0).all()


def test_nd_gradient():
    layer = {"class": "slice_nd", "start": "data:numbers", "size": None, "from": "a"}
    x, starts = feed()["data"], feed()["numbers"]
    expected = sum(2 * x[b, starts[b] : LENS[b]].sum(0) for b in range(3))
    np.testing.assert_allclose(gradient(layer), expected, rtol=1e-5)


def test_nd_errors():
    fails({"class": "slice_nd", "start": "data", "size": 2, "from": "data"}, "start must hold integers")


def test_time_dim_of_the_template():
    data = template({"output": {"class": "slice_nd", "start": 1, "from": "data"}})
    assert str(data.time_dim) == "time-1"
