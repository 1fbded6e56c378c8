"""`split_dims`, `split_batch_time`, `split` and `reshape` against numpy."""

import numpy as np
import pytest

from returnn_tf.tensor import FeatureDim, SpatialDim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, output, run, template

SPLIT = {"class": "split_dims", "from": "data:wide"}


def merged(x):
    return x.reshape(3, 4, 6)


@pytest.mark.parametrize("dims", [(2, 3), (-1, 3), (2, -1), [-1, 3, 1], (-1, 6), (6, -1)])
def test_feature_axis_round_trip(dims):
    """The last part is the feature axis; the sizes multiply to the old one."""
    net = {
        "m": {"class": "merge_dims", "axes": [STATIC, FEATURE], "from": "data:wide"},
        "output": {"class": "split_dims", "axis": "F", "dims": dims, "from": "m"},
    }
    result = run(net)["output"]
    sizes = [6 // abs(int(np.prod(dims))) if d == -1 else d for d in dims]
    assert result.axes == ("B", "T", *["S"] * (len(dims) - 1), "F")
    np.testing.assert_array_equal(result.value, feed()["wide"].reshape([3, 4] + sizes))


@pytest.mark.parametrize("dims,axis", [((-1, 3), 1), ((3, -1), 2), ((1, -1, 3), 2)])
def test_dynamic_axis_is_padded_to_a_multiple(dims, axis):
    result = output({"class": "split_dims", "axis": "T", "dims": dims, "pad_value": 7, "from": "data"})
    x = np.pad(feed()["data"], [(0, 0), (0, 2), (0, 0)], constant_values=7)
    np.testing.assert_array_equal(result.value, x.reshape([3] + [2 if d == -1 else d for d in dims] + [3]))
    np.testing.assert_array_equal(result.sizes[axis], -(-LENS // 3))
    assert result.axes[axis] == "T"


def test_merging_again_gives_the_same_dim():
    net = {
        "s": {"class": "split_dims", "axis": "T", "dims": (-1, 2), "from": "data"},
        "m": {"class": "merge_dims", "axes": ["T", "dim:2"], "from": "s"},
        "output": {"class": "split_dims", "axis": "T", "dims": (-1, 2), "from": "m"},
    }
    assert template(net).time_dim is TIME.ceildiv_right(2)


def test_static_axis_padded():
    layer = {"class": "split_dims", "axis": "F", "dims": (2, 2), "pad_to_multiples": True, "from": "data"}
    expected = np.pad(feed()["data"], [(0, 0), (0, 0), (0, 1)]).reshape(3, 4, 2, 2)
    np.testing.assert_array_equal(output(layer).value, expected)


def test_declared_dims():
    a, b, chunk = SpatialDim("a", 1), FeatureDim("b", 3), SpatialDim("chunks")
    data = template({"output": {"class": "split_dims", "axis": "F", "dims": [a, b], "from": "data"}})
    assert data.dims[2:] == (a, b) and data.feature_axis == 3
    net = {
        "s": {"class": "split_dims", "axis": "T", "dims": [chunk, SpatialDim("c", 2)], "from": "data"},
        "output": {"class": "merge_dims", "axes": [chunk, "F"], "from": "s"},
    }
    assert run(net)["output"].value.shape == (3, 2, 6)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"axis": "F", "dims": (-1, -1)}, "only one of them can be -1"),
        ({"axis": "F", "dims": (2, 2)}, "multiply to 4, but the axis has .*3"),
        ({"axis": "F", "dims": (-1, 2)}, "is not a multiple of 2"),
        ({"axis": "F", "dims": (-1, 0)}, "sizes must be positive"),
        ({"axis": "T", "dims": (2, 2)}, "is dynamic, so one of the dims .* must be -1"),
    ],
)
def test_split_errors(options, message):
    fails({**SPLIT, **options}, message)


def test_split_batch_time():
    net = {
        "m": {"class": "merge_dims", "axes": ["B", "T"], "from": "data"},
        "output": {"class": "split_batch_time", "base": "data", "from": "m"},
    }
    result = run(net)["output"]
    assert result.axes == ("B", "T", "F")
    np.testing.assert_array_equal(result.value, feed()["data"])
    np.testing.assert_array_equal(result.sizes[1], LENS)


@pytest.mark.parametrize(
    "options",
    [{"num_splits": 3}, {"size_splits": [1, 1, 1]}, {"out_dims": [FeatureDim(n, 1) for n in "abc"]},
     {"out_dims": [FeatureDim("a"), FeatureDim("b", 1), FeatureDim("c", 1)]}],
)  # fmt: skip
def test_split(options):
    net = {"s": {"class": "split", "from": "data", **options}, "output": {"class": "copy", "from": ["s/2", "s/0"]}}
    np.testing.assert_array_equal(run(net)["output"].value, feed()["data"][:, :, [2, 0]])


@pytest.mark.parametrize(
    "options,message",
    [
        ({}, "give one of num_splits, size_splits, out_dims"),
        ({"num_splits": 2}, "can't be cut into 2 equal parts"),
        ({"size_splits": [1, 1]}, "sum to 2, but the axis has"),
        ({"axis": "T", "num_splits": 2}, "must have a static size"),
    ],
)
def test_split_layer_errors(options, message):
    fails({"class": "split", "from": "data", **options}, message)


def test_unknown_part():
    net = {"s": {"class": "split", "num_splits": 3, "from": "data"}, "output": {"class": "copy", "from": "s/3"}}
    with pytest.raises(Exception, match="layer 's' has no part '3'"):
        template(net)


RESHAPED = SpatialDim("reshaped")


@pytest.mark.parametrize(
    "ins,outs,expected",
    [
        ([STATIC, FEATURE], [SpatialDim("a", 3), FeatureDim("b", 2)], lambda x: x.reshape(3, 4, 3, 2)),
        ([FEATURE, STATIC], [FeatureDim("b", 6)], lambda x: x.transpose(0, 1, 3, 2).reshape(3, 4, 6)),
        ([STATIC, FEATURE], [SpatialDim("a"), FeatureDim("b", 2)], lambda x: x.reshape(3, 4, 3, 2)),
        ([TIME, STATIC], [RESHAPED], lambda x: x.reshape(3, 8, 3)),
        ([TIME, STATIC], [STATIC, TIME], lambda x: x.reshape(3, 2, 4, 3)),
    ],
)
def test_reshape(ins, outs, expected):
    result = output({"class": "reshape", "in_dims": ins, "out_dims": outs, "from": "data:wide"})
    np.testing.assert_array_equal(result.value, expected(feed()["wide"]))
    assert result.axes[-1] == "F"
    if outs == [RESHAPED]:
        np.testing.assert_array_equal(result.sizes[1], LENS * 2)


@pytest.mark.parametrize(
    "ins,outs,message",
    [
        ([STATIC, FEATURE], [SpatialDim("a", 5)], "have different numbers of entries"),
        ([STATIC, FEATURE], [SpatialDim("a"), SpatialDim("b", 4)], "6 is not a multiple of 4"),
        ([STATIC, FEATURE], [SpatialDim("a"), SpatialDim("b")], "only one dim of unknown size"),
    ],
)
def test_reshape_errors(ins, outs, message):
    fails({"class": "reshape", "in_dims": ins, "out_dims": outs, "from": "data:wide"}, message)
