"""`pad` against `numpy.pad`, at array borders and at sequence ends."""

import numpy as np
import pytest

from returnn_tf.tensor import FeatureDim, SpatialDim
from tests.layers.nets import LENS, fails, feed, gradient, output, template

MODES = {"constant": "constant", "reflect": "reflect", "symmetric": "symmetric", "replication": "edge"}


def padded(x, left, right, mode, value):
    kwargs = {"constant_values": value} if mode == "constant" else {}
    return np.pad(x, [(left, right)] + [(0, 0)] * (x.ndim - 1), mode=MODES[mode], **kwargs)


@pytest.mark.sampled
@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("padding", [1, (0, 1), (1, 0), [(2, 1)]])
def test_static_axis(mode, padding):
    layer = {"class": "pad", "axes": "F", "padding": padding, "mode": mode, "value": 0.5, "from": "data"}
    left, right = {1: (1, 1)}.get(padding) if isinstance(padding, int) else (
        padding[0] if isinstance(padding, list) else padding
    )  # fmt: skip
    expected = np.moveaxis(padded(np.moveaxis(feed()["data"], 2, 0), left, right, mode, 0.5), 0, 2)
    np.testing.assert_array_equal(output(layer).value, expected)


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("left,right", [(1, 1), (0, 1), (1, 0)])
def test_dynamic_axis_at_sequence_ends(mode, left, right):
    layer = {"class": "pad", "axes": "T", "padding": (left, right), "mode": mode, "value": 0.5, "from": "data"}
    result, x = output(layer), feed()["data"]
    np.testing.assert_array_equal(result.sizes[1], LENS + left + right)
    assert result.value.shape == (3, 4 + left + right, 3)
    for b, length in enumerate(LENS):
        # Padding on the left only depends on the first frames of the array, which is longer than some sequences.
        own = length if right else 4
        expected = padded(x[b, :own], left, right, mode, 0.5)[: length + left + right]
        np.testing.assert_array_equal(result.value[b, : length + left + right], expected)


@pytest.mark.parametrize("options,version", [({}, 20), ({"handle_dynamic_dims": False}, 21)])
def test_dynamic_axis_at_the_array_end(options, version):
    layer = {"class": "pad", "axes": "T", "padding": (2, 1), "value": 1.0, "from": "data", **options}
    result = output(layer, behavior_version=version)
    np.testing.assert_array_equal(result.sizes[1], LENS + 3)
    np.testing.assert_array_equal(result.value, np.pad(feed()["data"], [(0, 0), (2, 1), (0, 0)], constant_values=1.0))


def test_several_axes_and_dims():
    a, b = SpatialDim("a"), FeatureDim("b", 6)
    layer = {"class": "pad", "axes": ("T", "F"), "padding": [(0, 0), (1, 2)], "out_dims": [a, b], "from": "data:wide"}
    data = template({"output": layer})
    assert data.dims[3] is b and data.feature_axis == 3
    assert output(layer).value.shape == (3, 4, 2, 6)


def test_sparse_and_bool():
    layer = {"class": "pad", "axes": "T", "padding": (1, 0), "value": 4, "from": "data:labels"}
    result = output(layer)
    assert result.value.dtype == "int32"
    np.testing.assert_array_equal(result.value[:, 0], [4, 4, 4])
    np.testing.assert_array_equal(result.value[:, 1:], feed()["labels"])


def test_gradient():
    layer = {"class": "pad", "axes": "T", "padding": (1, 2), "mode": "replication", "from": "a"}
    x, got = feed()["data"], gradient(layer)
    expected = sum(2 * padded(x[b, :n], 1, 2, "replication", 0).sum(0) for b, n in enumerate(LENS))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"axes": "B", "padding": 1}, "the batch axis can't be padded"),
        ({"axes": "F", "padding": 1, "mode": "edge"}, "unknown mode 'edge'. Use one of: constant, reflect"),
        ({"axes": "F", "padding": (1, 2, 3)}, r"padding must be an int, a pair \(left, right\)"),
        ({"axes": "F", "padding": -1}, "padding must be an int"),
        ({"axes": "F", "padding": 3, "mode": "reflect"}, "can add at most 2 entries to the axis"),
    ],
)
def test_errors(options, message):
    fails({"class": "pad", "from": "data", **options}, message)
