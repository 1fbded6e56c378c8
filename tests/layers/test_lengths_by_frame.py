"""Axes whose lengths vary with the frames of another axis: `range_from_length` of [batch, time], and what uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import SpatialDim
from tests.layers.nets import LENS, feed, run, template

K = SpatialDim("k")
COUNTS = np.array([[2, 1, 3, 1], [1, 2, 0, 0], [3, 3, 1, 0]], "int32")
RANGE = {
    "r": {"class": "range_from_length", "from": "data:ints", "out_spatial_dim": K, "dtype": "float32"},
    "x": {"class": "cast", "from": "data:ints", "dtype": "float32"},
    "both": {"class": "combine", "kind": "add", "from": ["r", "x"], "allow_broadcast_all_sources": True},
}
#: Of a frame with the number n: n, n + 1, ..., 2 n - 1.
VALUES = [[np.arange(n) + n for n in counts[:length]] for counts, length in zip(COUNTS, LENS)]


def results(layer: dict[str, Any], **layers: Any) -> Any:
    network = {**RANGE, **layers, "output": layer}
    return run(network, feed(ints=COUNTS))["output"]


def test_range_has_the_new_axis_alone() -> None:
    result = results({"class": "copy", "from": "r"})
    assert result.axes == ("T",)
    np.testing.assert_array_equal(result.value, [0, 1, 2])
    np.testing.assert_array_equal(result.sizes[0], COUNTS)


@pytest.mark.parametrize(
    "dim, lens", [(K, COUNTS), (2 * K + 1, 2 * COUNTS + 1), (K.ceildiv_right(2), (COUNTS + 1) // 2)]
)
def test_length_has_the_axes_of_the_lengths(dim: Any, lens: Any) -> None:
    network = {**RANGE, "output": {"class": "length", "axis": dim, "from": "r"}}
    assert template(network).axis_kinds == ("B", "T")
    np.testing.assert_array_equal(run(network, feed(ints=COUNTS))["output"].value, lens)


@pytest.mark.parametrize(
    "layer, function",
    [
        ({"class": "reduce", "mode": "sum", "axis": K, "from": "both"}, np.sum),
        ({"class": "reduce", "mode": "mean", "axis": K, "from": "both"}, np.mean),
        ({"class": "dot", "reduce": K, "from": ["weights", "both"]}, lambda x: (np.exp(x) * x).sum() / np.exp(x).sum()),
        ({"class": "reduce", "mode": "sum", "axis": "stag:k", "from": "pad"}, lambda x: x.sum() + 7),
        ({"class": "reduce", "mode": "sum", "axis": "stag:k", "from": "twice"}, lambda x: x.sum() * 2),
    ],
)
def test_frames_are_masked_by_their_own_lengths(layer: Any, function: Any) -> None:
    layers = {
        "weights": {"class": "softmax_over_spatial", "axis": K, "from": "both"},
        "pad": {"class": "pad", "axes": K, "padding": (1, 0), "value": 7, "from": "both"},
        "wide": {"class": "expand_dims", "axis": "spatial", "dim": 2, "from": "both"},
        "twice": {"class": "merge_dims", "axes": [K, "dim:2"], "from": "wide"},
    }
    found = results(layer, **layers).value
    for row, values in zip(found, VALUES):
        expected = [function(x) for x in values if len(x)]
        np.testing.assert_allclose([y for y, x in zip(row, values) if len(x)], expected, rtol=1e-5)


def test_values_of_padded_frames() -> None:
    layer = {"class": "seq_len_mask", "axis": K, "mask_value": -1.0, "from": "both"}
    found = results(layer).value
    for row, values in zip(found, VALUES):
        for y, x in zip(row, values):
            np.testing.assert_array_equal(y, [*x, *[-1] * (3 - len(x))])


@pytest.mark.parametrize("optimize", [True, False])
def test_in_a_loop_each_step_has_its_own_lengths(optimize: bool) -> None:
    unit = {
        **RANGE,
        "r": {**RANGE["r"], "from": "data:source"},
        "x": {"class": "cast", "from": "data:source", "dtype": "float32"},
        "sum": {"class": "reduce", "mode": "sum", "axis": K, "from": "both"},
        "output": {"class": "combine", "kind": "add", "from": ["sum", "prev:output"]},
    }
    loop = {"class": "rec", "from": "data:ints", "unit": unit, "optimize_move_layers_out": optimize}
    found = run({"output": loop}, feed(ints=COUNTS))["output"].value
    found = found if len(found) == 3 else found.T
    for row, values in zip(found, VALUES):
        np.testing.assert_allclose(row[: len(values)], np.cumsum([x.sum() for x in values]), rtol=1e-5)


@pytest.mark.parametrize(
    "layer, message",
    [
        ({"class": "range_from_length", "from": "data"}, "holds lengths, i.e. integers, but it is"),
        ({"class": "reduce", "mode": "sum", "axis": K, "from": "less"}, "Layer 'output'.*vary with the frames of"),
        ({"class": "window", "axis": K, "window_size": 3, "from": "both"}, None),
        ({"class": "flatten_batch", "axis": K, "from": "both"}, "Layer 'output'.*supports only lengths by sequence"),
    ],
)  # fmt: skip
def test_errors(layer: Any, message: Any) -> None:
    less = {"class": "reduce", "mode": "max", "axis": "T", "from": "both"}
    if message is None:
        assert results(layer).axes.count("T") == 2
        return
    with pytest.raises(ConfigError, match=message):
        results(layer, less=less)
