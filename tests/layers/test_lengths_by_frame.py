"""Axes whose lengths vary with the frames of another axis: `range_from_length` of [batch, time], and what uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import ConfigError
from returnn_tf.tensor import SpatialDim
from tests.layers.nets import FEATURE, LENS, config_of, feed, net_of, run, template

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


def _loop(optimize: bool) -> dict[str, Any]:
    unit = {
        **RANGE,
        "r": {**RANGE["r"], "from": "data:source"},
        "x": {"class": "cast", "from": "data:source", "dtype": "float32"},
        "output": {"class": "copy", "from": "both"},
    }
    return {"class": "rec", "from": "data:ints", "unit": unit, "optimize_move_layers_out": optimize}


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    "layer, function",
    [
        ({"class": "reduce", "mode": "sum", "axis": K, "from": "loop"}, np.sum),
        ({"class": "dot", "reduce": K, "from": ["weights", "loop"]}, lambda x: (np.exp(x) * x).sum() / np.exp(x).sum()),
        ({"class": "length", "axis": K, "from": "loop"}, len),
    ],
)
def test_axes_of_a_step_outside_of_the_loop(layer: Any, function: Any, optimize: bool) -> None:
    """Lengths that a loop computes step by step, or for all steps at once, are those of the frames outside."""
    weights = {"class": "softmax_over_spatial", "axis": K, "from": "loop"}
    result = run({"loop": _loop(optimize), "weights": weights, "output": layer}, feed(ints=COUNTS))["output"]
    assert sorted(result.axes) == ["B", "T"]
    for row, values in zip(result.value, VALUES):
        expected = [function(x) for x in values if len(x)]
        np.testing.assert_allclose([y for y, x in zip(row, values) if len(x)], expected, rtol=1e-5)


def test_slices_from_a_position_that_the_loop_finds() -> None:
    """The weights of a slice determine where the next one begins; they leave the loop, with a gradient."""
    slices = {
        "slice": {"class": "slice_nd", "from": "base:scaled", "start": "prev:start", "size": None},
        "energy": {"class": "reduce", "mode": "sum", "axis": "F", "from": "slice"},
        "weights": {"class": "softmax_over_spatial", "axis": "stag:sliced", "from": "energy", "is_output_layer": True},
        "length": {"class": "length", "axis": "stag:sliced", "from": "weights"},
        "more": {"class": "compare", "kind": "greater", "value": 2, "from": "length"},
        "start": {"class": "switch", "condition": "more", "true_from": ":i", "false_from": 1, "initial_output": 0},
        "output": {"class": "dot", "reduce": "stag:sliced", "from": ["weights", "slice"]},
    }
    network = {
        "scale": {"class": "variable", "shape": [FEATURE], "init": 1.0},
        "scaled": {"class": "combine", "kind": "mul", "from": ["data", "scale"]},
        "output": {"class": "rec", "from": "data", "unit": slices, "loss": "as_is"},
    }
    arrays = feed()
    net = net_of(network)
    found = net.run(arrays, with_grad=True)
    assert np.abs(found.grads["scale/scale"]).min() > 0
    weights, output = found.layers["output/weights"], found.layers["output"]
    for b, length in enumerate(LENS):
        start = 0
        for t in range(length):
            x = arrays["data"][b, start:length].astype("float64")
            energy = np.exp(x.sum(1))
            np.testing.assert_allclose(weights.value[b, t, : len(x)], energy / energy.sum(), rtol=1e-4)
            assert not weights.value[b, t, len(x) :].any()
            np.testing.assert_allclose(output.value[b, t], energy @ x / energy.sum(), rtol=1e-4)
            start = t if length - start > 2 else 1


@pytest.mark.parametrize("early", [True, False])
def test_lengths_of_hypotheses(early: bool) -> None:
    """A slice begins at the last label, or at the label of the step: its lengths follow the hypotheses."""
    chosen = "prev:output" if early else "output"
    unit = {
        "prob": {"class": "softmax", "n_out": 3, "from": ["data:source", "embedding"]},
        "embedding": {"class": "linear", "activation": None, "n_out": 2, "from": "prev:output"},
        "start": {"class": "reinterpret_data", "set_sparse": False, "from": chosen},
        "slice": {"class": "slice_nd", "from": "base:data", "start": "start", "size": None},
        "energy": {"class": "reduce", "mode": "sum", "axis": "F", "from": "slice"},
        "weights": {"class": "softmax_over_spatial", "axis": "stag:sliced", "from": "energy", "is_output_layer": True},
        "output": {"class": "choice", "target": None, "beam_size": 3, "initial_output": 1, "from": "prob"},
    }
    config = config_of({"output": {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": early}})
    net = Network.from_config(config, search=True)
    rng = np.random.default_rng(5)
    net.set_param_values({name: 3 * rng.normal(size=var.shape) for name, var in net.params.items()})
    found = net.run(feed()).layers
    labels, weights = found["output"].value, found["output/weights"].value
    assert len(np.unique(labels)) == 3 and len(labels) == 9
    for entry, row in enumerate(labels):
        length = LENS[entry // 3]
        starts = [1, *row][:length] if early else row[:length]
        counts = [(w > 0).sum() for w in weights[entry, :length]]
        np.testing.assert_array_equal(counts, [max(length - start, 0) for start in starts])
        np.testing.assert_array_equal(found["output/weights"].sizes[2][entry, :length], counts)


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
