"""`seq_len_mask` and `boolean_mask` against numpy."""

import numpy as np
import pytest

from returnn_tf.tensor import SpatialDim, batch_dim
from tests.layers.nets import FEATURE, LENS, STATIC, TIME, fails, feed, gradient, output, run

FRAMES = np.arange(4)[None]
LENGTHS = LENS[:, None]
NUMBERS = np.array([[1], [0], [2]])
INSIDE = FRAMES < LENGTHS


@pytest.mark.parametrize(
    "options,mask",
    [
        ({}, FRAMES < LENGTHS),
        ({"start": 1}, (FRAMES < LENGTHS) & (FRAMES >= 1)),
        ({"start": "data:numbers"}, (FRAMES < LENGTHS) & (FRAMES >= NUMBERS)),
        ({"window_start": "data:numbers", "window_size": 2}, INSIDE & (FRAMES >= NUMBERS) & (FRAMES < NUMBERS + 2)),
        ({"window_start": 1, "window_size": "data:numbers"}, INSIDE & (FRAMES >= 1) & (FRAMES < 1 + NUMBERS)),
        ({"seq_len_source": "data:numbers"}, FRAMES < NUMBERS),
        ({"seq_len_source": "data:other"}, FRAMES < LENGTHS),
    ],
)  # fmt: skip
def test_seq_len_mask(options, mask):
    for source in ("data", "data:wide"):
        result = output({"class": "seq_len_mask", "axis": "T", "mask_value": -5.0, "from": source, **options})
        x = feed()[source.rpartition(":")[2]]
        np.testing.assert_array_equal(result.value, np.where(mask.reshape(3, 4, *[1] * (x.ndim - 2)), x, -5.0))


def test_static_axis():
    layer = {"class": "seq_len_mask", "axis": STATIC, "mask_value": 0, "from": "data:wide"}
    np.testing.assert_array_equal(output(layer).value, feed()["wide"])
    result = output({**layer, "start": 1})
    np.testing.assert_array_equal(result.value[:, :, 0], 0)
    np.testing.assert_array_equal(result.value[:, :, 1], feed()["wide"][:, :, 1])


def test_integers_and_large_values():
    layer = {"class": "seq_len_mask", "mask_value": 2147483647, "from": "data:ints"}
    np.testing.assert_array_equal(output(layer).value, np.where(FRAMES < LENGTHS, feed()["ints"], 2147483647))


def test_gradient():
    got = gradient({"class": "seq_len_mask", "axis": "T", "mask_value": 3.0, "start": 1, "from": "a"})
    mask = ((FRAMES < LENGTHS) & (FRAMES >= 1))[:, :, None]
    np.testing.assert_allclose(got, (2 * feed()["data"] * mask).sum((0, 1)), rtol=1e-5)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"window_start": 1}, "window_start and window_size belong together"),
        ({"start": "data:other"}, "start: .* has the axis .*, which the source lacks"),
    ],
)
def test_errors(options, message):
    fails({"class": "seq_len_mask", "mask_value": 0.0, "from": "data", **options}, message)


def boolean_net(dims, source="data"):
    return {
        "m": {"class": "compare", "kind": "greater", "value": 0, "from": "data:ints"},
        "output": {"class": "boolean_mask", "mask": "m", "dims": dims, "out_dim": SpatialDim("m"), "from": source},
    }


@pytest.mark.parametrize("source", ["data", "data:wide", "data:labels"])
def test_boolean_mask(source):
    x, mask = feed()[source.rpartition(":")[2]], feed()["ints"] > 0
    result = run(boolean_net([batch_dim, TIME], source))["output"]
    assert result.axes[0] == "T"
    np.testing.assert_array_equal(result.value, x[mask])
    assert result.sizes[0] == mask.sum() and result.sizes[0].shape == ()
    result = run(boolean_net([TIME, batch_dim], source))["output"]
    np.testing.assert_array_equal(result.value, x.swapaxes(0, 1)[mask.T])


def test_boolean_mask_of_features():
    net = {
        "m": {"class": "constant", "value": np.array([True, False, True]), "shape": [FEATURE]},
        "output": {"class": "boolean_mask", "mask": "m", "dims": [FEATURE], "from": "data"},
    }
    result = run(net)["output"]
    assert result.axes == ("B", "F", "T")  # the new axis is the only one besides batch and time
    np.testing.assert_array_equal(result.value, feed()["data"][:, :, [0, 2]].transpose(0, 2, 1))
    np.testing.assert_array_equal(result.sizes[1], 2)


def test_boolean_mask_errors():
    fails({"class": "boolean_mask", "mask": "data:ints", "dims": [TIME], "from": "data"}, "must be bool, but it is")
    net = {"class": "boolean_mask", "mask": "mm", "dims": [TIME], "from": "data"}
    with pytest.raises(Exception, match="must be all dims of the mask"):
        run({"mm": boolean_net([])["m"], "output": net})
