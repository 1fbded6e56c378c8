"""`expand_dims`, `squeeze`, `transpose`, `swap_axes` against numpy."""

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim, batch_dim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, output, run, template


@pytest.mark.parametrize(
    "source,options,version,axes,shape",
    [
        ("data", {"axis": "F"}, 21, "B,T,S,F", (3, 4, 3, 1)),
        ("data", {"axis": "feature", "dim": 2}, 21, "B,T,S,F", (3, 4, 3, 2)),
        ("data", {"axis": "spatial"}, 21, "B,T,S,F", (3, 4, 1, 3)),
        ("data", {"axis": "T", "dim": 5}, 21, "B,T,S,F", (3, 4, 5, 3)),
        ("data:labels", {"axis": "F"}, 21, "B,T,S", (3, 4, 1)),
        ("data:numbers", {"axis": "F"}, 21, "B,F", (3, 1)),
        ("data:numbers", {"axis": "spatial"}, 21, "B,S", (3, 1)),
        ("data", {"axis": 1}, 0, "B,S,T,F", (3, 1, 4, 3)),
        ("data", {"axis": -1}, 0, "B,T,F,S", (3, 4, 3, 1)),
    ],
)
def test_expand(source, options, version, axes, shape):
    result = output({"class": "expand_dims", "from": source, **options}, behavior_version=version)
    assert ",".join(result.axes) == axes
    assert result.value.shape == shape
    key = source.replace("data:", "")
    given = feed()[key]
    position = [i for i, n in enumerate(shape) if shape[:i] + shape[i + 1 :] == given.shape][-1 if shape[-1] < 3 else 0]
    for part in np.moveaxis(result.value, position, 0):
        np.testing.assert_array_equal(part, given)


def test_expand_by_a_dim_of_another_layer():
    """The lengths come with the dim, though the layer has no source with it."""
    net = {
        "s": {"class": "slice", "axis": "T", "slice_start": 1, "from": "data"},
        "last": {"class": "gather", "axis": "T", "position": 0, "from": "data"},
        "e": {"class": "expand_dims", "axis": "spatial", "dim": TIME - 1, "from": "last"},
        "output": {"class": "combine", "kind": "sub", "from": ["s", "e"]},
    }
    x = feed()["data"]
    np.testing.assert_allclose(run(net)["output"].value, x[:, 1:] - x[:, :1])


@pytest.mark.parametrize(
    "options,message",
    [
        ({"axis": 1}, "an index is not allowed since behavior version 5"),
        ({"axis": "B"}, "must be 'F' or 'spatial'"),
        ({"axis": "F", "dim": 0}, "dim must be positive"),
        ({"axis": "F", "dim": SpatialDim("unknown")}, "the lengths of the dim unknown are not known here"),
    ],
)
def test_expand_errors(options, message):
    fails({"class": "expand_dims", "from": "data", **options}, message)


@pytest.mark.parametrize("axis", ["F", "auto", "dim:1", ["F"]])
def test_squeeze(axis):
    net = {
        "e": {"class": "expand_dims", "axis": "F", "from": "data"},
        "output": {"class": "squeeze", "axis": axis, "from": "e"},
    }
    result = run(net)["output"]
    assert result.axes == ("B", "T", "F")
    np.testing.assert_array_equal(result.value, feed()["data"])


def test_squeeze_moves_the_batch_axis():
    net = {
        "e": {"class": "expand_dims", "axis": "spatial", "from": "data"},
        "t": {"class": "swap_axes", "axis1": "B", "axis2": "T", "from": "e"},
        "output": {"class": "squeeze", "axis": "dim:1", "enforce_batch_dim_axis": 0, "from": "t"},
    }
    assert template(net).batch_axis == 0
    np.testing.assert_array_equal(run(net)["output"].value, feed()["data"])


def test_squeeze_errors():
    fails({"class": "squeeze", "axis": "dim:1", "from": "data"}, "has no axis 'dim:1'. Set allow_no_op")
    layer = {"class": "squeeze", "axis": "dim:1", "allow_no_op": True, "from": "data"}
    np.testing.assert_array_equal(output(layer).value, feed()["data"])


@pytest.mark.parametrize(
    "perm",
    [{TIME: STATIC, STATIC: TIME}, {"T": "dim:2", "dim:2": "T"}, [batch_dim, STATIC, TIME, FEATURE],
     ["B", "dim:2", "T", "F"], {"T": STATIC}],
)  # fmt: skip
def test_transpose(perm):
    result = output({"class": "transpose", "perm": perm, "from": "data:wide"})
    assert result.axes == ("B", "S", "T", "F")
    np.testing.assert_array_equal(result.value, feed()["wide"].transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(result.sizes[2], LENS)


@pytest.mark.parametrize(
    "perm,message",
    [
        (["B", "T", "F"], "perm must name every axis"),
        ({"T": "F", "F": "F"}, "perm names an axis of .* twice"),
    ],
)
def test_transpose_errors(perm, message):
    fails({"class": "transpose", "perm": perm, "from": "data:wide"}, message)


@pytest.mark.parametrize(
    "source,first,second,version,axes,order",
    [
        ("data:wide", STATIC, FEATURE, 21, "B,T,S,F", (0, 1, 3, 2)),
        ("data:wide", "s:1", "f", 0, "B,T,S,F", (0, 1, 3, 2)),
        ("data", "T", "F", 21, "B,F,T", (0, 2, 1)),
        ("data", 1, 2, 0, "B,F,T", (0, 2, 1)),
        ("data", "B", "T", 21, "B,T,F", (0, 1, 2)),
    ],
)
def test_swap_axes(source, first, second, version, axes, order):
    result = output({"class": "swap_axes", "axis1": first, "axis2": second, "from": source}, behavior_version=version)
    assert ",".join(result.axes) == axes
    np.testing.assert_array_equal(result.value, feed()[source.replace("data:", "")].transpose(order))
