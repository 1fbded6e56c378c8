"""The layers for models of segments, against plain loops."""

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import LENS, feed, run

X = feed()["data"]
LENS5 = np.array([5, 3, 4], "int32")
LABELS = np.array([[1, 1, 0, 2, 2], [2, 0, 0, 1, 1], [0, 1, 1, 0, 2]], "int32")
#: (sequence, first frame) of each segment of sequences with these lengths
STARTS = [(b, t) for b, n in enumerate(LENS) for t in range(n)]
STARTS5 = [(b, t) for b, n in enumerate(LENS5) for t in range(n)]


def on_labels(layer, labels=LABELS, lens=LENS5, **config):
    config["extern_data"] = {"data": {"dim": 3, "sparse": True}}
    return run({"output": {"from": "data", **layer}}, {"data": labels, "data/size0": lens}, **config)["output"]


@pytest.mark.parametrize("window", [1, 2, 3, 9])
def test_segments_and_back(window):
    network = {
        "segments": {"class": "segment_input", "window": window, "from": "data", "is_output_layer": True},
        "output": {"class": "unsegment_input", "from": "segments"},
    }
    layers = run(network)
    segments, result = layers["segments"], layers["output"]
    lens = np.array([min(window, LENS[b] - t) for b, t in STARTS])
    np.testing.assert_array_equal(segments.sizes[1], lens)
    for row, (b, t), n in zip(segments.value, STARTS, lens):
        np.testing.assert_array_equal(row[:n], X[b, t : t + n])
    np.testing.assert_array_equal(result.sizes[1], LENS)
    for b, n in enumerate(LENS):
        for t in range(n):
            expected = [X[b, t] if t >= k else np.zeros(3) for k in range(window)]
            np.testing.assert_array_equal(result.value[b, t], np.concatenate(expected))


def test_longer_segments():
    """The dim of the frames of segments is an operand like others; its sums are plain dims."""
    network = {
        "segments": {"class": "segment_input", "window": 2, "from": "data"},
        "output": {"class": "pad", "axes": "T", "padding": (1, 2), "handle_dynamic_dims": True, "from": "segments"},
    }
    result = run(network)["output"]
    lens = np.array([min(2, LENS[b] - t) for b, t in STARTS])
    np.testing.assert_array_equal(result.sizes[1], lens + 3)
    for row, (b, t), n in zip(result.value, STARTS, lens):
        np.testing.assert_array_equal(row[1 : n + 1], X[b, t : t + n])
        np.testing.assert_array_equal(row[n + 1 : n + 3], 0)


@pytest.mark.parametrize("window", [1, 3])
def test_classes_to_segments(window):
    result = on_labels({"class": "classes_to_segments", "num_classes": 4, "window": window})
    for row, (b, t), n in zip(result.value, STARTS5, result.sizes[1]):
        for i in range(n):
            expected = np.bincount(LABELS[b, t : t + i + 1], minlength=4) / (i + 1)
            np.testing.assert_allclose(row[i], expected, rtol=1e-6)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_classes_to_length_distribution(window):
    result = on_labels({"class": "classes_to_length_distribution", "window": window})
    assert result.value.shape == (len(STARTS5), 1, window)
    for row, (b, t) in zip(result.value, STARTS5):
        labels = LABELS[b, t : min(t + window, LENS5[b])]
        ends = [i for i in range(len(labels)) if i + 1 == len(labels) or labels[i] != labels[i + 1]]
        expected = np.zeros(window)
        expected[ends] = np.diff([-1, *ends]) / len(labels)
        np.testing.assert_allclose(row[0], expected, rtol=1e-6)


@pytest.mark.parametrize("falloff,smoothing,least", [(1.0, None, 1), (0.5, None, 1), (0.4, 3, 1), (0.5, None, 2)])
@pytest.mark.parametrize("axis", ["time", "feature"])
def test_classes_to_length_distribution_global(falloff, smoothing, least, axis):
    window = 4
    layer = {"class": "classes_to_length_distribution_global", "window": window, "weight_falloff": falloff}
    layer.update(target_smoothing=smoothing, min_length=least, broadcast_axis=axis)
    result = on_labels(layer)
    assert result.value.shape[1:] == ((1, window) if axis == "time" else (window, 1))
    for row, (b, t) in zip(result.value, STARTS5):
        n = min(window, LENS5[b] - t)
        ends = [i for i in range(LENS5[b]) if i + 1 == LENS5[b] or LABELS[b, i] != LABELS[b, i + 1]]
        weights, count = np.zeros(window), 0
        for i in range(least - 1, n):
            if t + i in ends:
                weights[i] = falloff * (1 - falloff) ** count
                count += 1
        weights[n - 1] = max(weights[n - 1], 1e-4)
        if smoothing:
            weights = np.convolve(weights, np.ones(smoothing), "same") * (np.arange(window) < n)
        np.testing.assert_allclose(row.reshape(window), weights / weights.sum(), rtol=1e-5)


def test_segment_alignment():
    labels, ends = LABELS[:, :4] % 2, np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 1]], "int32")
    pairs = np.stack([labels, ends], axis=2).reshape(3, 8)
    result = on_labels({"class": "segment_alignment", "num_classes": 2, "window": 3}, pairs, 2 * LENS)
    expected = np.zeros([len(STARTS), 3, 2])
    for row, (b, t) in zip(expected, STARTS):
        found = [i for i in range(3) if t + i < LENS[b] and ends[b, t + i]]
        if found:
            row[found[0], labels[b, t + found[0]]] = 1
    for n, got, wanted in zip(result.sizes[1], result.value, expected):
        np.testing.assert_array_equal(got[:n], wanted[:n])
    np.testing.assert_array_equal(result.sizes[1], [min(3, LENS[b] - t) for b, t in STARTS])


def test_apply_length_distribution():
    network = {
        "p": {"class": "eval", "eval": "tf.abs(source(0))", "from": "data"},
        "first": {"class": "slice", "axis": "T", "slice_start": 0, "slice_end": 1, "from": "p"},
        "more": {"class": "tile_features", "repetitions": 2, "from": "first"},
        "output": {"class": "apply_length_distribution", "length_model_scale": 0.5, "from": ["data", "more"]},
    }
    result = run(network)["output"]
    factors = np.tile(abs(X[:, :1]), (1, 1, 2)).transpose(0, 2, 1)[:, :4] ** 0.5
    np.testing.assert_allclose(result.value, X * factors, rtol=1e-5)


def test_normalize_length_scores():
    network = {
        "p": {"class": "softmax", "n_out": 3, "from": "data:wide", "is_output_layer": True},
        "output": {"class": "normalize_length_scores", "from": "p"},
    }
    layers = run(network)
    exponents = np.arange(1, 5).reshape([1, 4, 1, 1])
    np.testing.assert_allclose(layers["output"].value, layers["p"].value ** exponents, rtol=1e-5)


def test_axes_of_scores():
    network = {
        "fill": {"class": "fill_unused", "fill_value": 7, "from": "data", "is_output_layer": True},
        "swap": {"class": "swap_time_feature", "from": "data", "is_output_layer": True},
        "output": {"class": "flatten_time", "from": "data"},
    }
    layers = run(network)
    padded = (np.arange(4)[None] >= LENS[:, None])[..., None]
    np.testing.assert_array_equal(layers["fill"].value, np.where(padded, 7, X))
    assert layers["swap"].axes == ("B", "S", "F")
    np.testing.assert_array_equal(layers["swap"].value, X.transpose(0, 2, 1))
    np.testing.assert_array_equal(layers["output"].value, X.reshape(3, 1, 12))
    np.testing.assert_array_equal(layers["output"].sizes[2], LENS * 3)


@pytest.mark.parametrize(
    "layer,message",
    [
        ({"class": "segment_input", "window": 0}, "'window' must be at least 1"),
        ({"class": "segment_input", "from": "data:numbers"}, "batch and time axis"),
        ({"class": "unsegment_input"}, "needs the segments of a layer such as segment_input"),
        ({"class": "classes_to_segments", "num_classes": 3}, "needs a source of labels"),
        ({"class": "classes_to_segments", "num_classes": 3, "from": "data:labels"}, "more than num_classes = 3"),
        (
            {"class": "classes_to_length_distribution_global", "target_smoothing": 2, "from": "data:labels"},
            "target_smoothing must be odd",
        ),
        ({"class": "apply_length_distribution"}, "needs two sources"),
        ({"class": "apply_length_distribution", "from": ["data", "data"]}, r"must be \[batch, 1, lengths\]"),
        ({"class": "normalize_length_scores", "from": "data:labels"}, "needs scores as real numbers"),
        ({"class": "swap_time_feature", "from": "data:numbers"}, "no feature axis"),
        ({"class": "flatten_time", "from": "data:wide"}, r"needs a source with the axes \[batch, time, features\]"),
        ({"class": "segment_input", "windov": 3}, "unknown option 'windov'. Did you mean 'window'"),
    ],
)
def test_messages(layer, message):
    with pytest.raises(ConfigError, match=message):
        run({"output": {"from": "data", **layer}})


@pytest.mark.parametrize(
    "layer",
    [
        {"class": "classes_to_segments", "num_classes": 3},
        {"class": "classes_to_length_distribution"},
        {"class": "classes_to_length_distribution_global"},
        {"class": "classes_to_length_distribution_global", "weight_falloff": 0.5, "target_smoothing": 3},
        {"class": "segment_alignment", "num_classes": 3},
    ],
)
def test_precision_is_that_of_the_network(layer):
    single, double = (on_labels({**layer, "window": 3}, float_dtype=dtype) for dtype in ("float32", "float64"))
    assert single.value.dtype == "float32" and double.value.dtype == "float64"
    np.testing.assert_allclose(single.value, double.value, rtol=1e-5)
