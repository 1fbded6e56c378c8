"""The attention weights of returnn-tf report: which, in which size, and why some are not drawn."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.report import examples, weights
from returnn_tf.cli.report.model import Model, SeqReport
from returnn_tf.cli.report.weights import WeightsFunction, weights_layers
from returnn_tf.compiler.inner_weights import emit_inner_weights
from returnn_tf.compiler.network import Network
from returnn_tf.tensor import SpatialDim
from returnn_tf.util.png import grey_png
from tests.layers.nets import feed, net_of

pytest.importorskip("matplotlib")

SELF = {"class": "self_attention", "num_heads": 2, "total_key_dim": 6, "n_out": 6, "from": "data"}
OUTPUT = {"output": {"class": "copy", "from": "data"}}
HISTORY = SpatialDim("history")
ENERGY = {"class": "linear", "activation": None, "n_out": 2, "from": "data"}
BETWEEN = {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": "T", "from": ["data", "data:other"]}
LOOP = {
    "class": "rec",
    "from": "data",
    "unit": {
        "x": {"class": "combine", "kind": "add", "from": ["data:source", "prev:output"]},
        "y": {**SELF, "from": "x"},
        "output": {"class": "linear", "activation": None, "n_out": 3, "from": "y"},
    },
}
WITHIN = {
    "class": "rec",
    "from": "data",
    "unit": {
        "e": {"class": "combine", "kind": "mul", "from": ["base:data:other", "prev:output"]},
        "w": {"class": "softmax_over_spatial", "from": "e"},
        "output": {"class": "generic_attention", "weights": "w", "base": "base:data:other"},
    },
}
#: Layers -> path -> (queries, keys, heads) for the first sequence, or why its weights are not drawn.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "self-attention": ({"y": SELF}, {"y": (4, 4, 2)}),
    "in a subnetwork": (
        {"s": {"class": "subnetwork", "from": "data", "subnetwork": {
            "y": SELF, "output": {"class": "copy", "from": "y"}}}},
        {"s/y": (4, 4, 2)}),
    "one query": ({"e": ENERGY, "y": {"class": "softmax_over_spatial", "from": "e"}}, {"y": (1, 4, 2)}),
    "logarithms": (
        {"e": BETWEEN, "y": {"class": "softmax_over_spatial", "log_space": True, "axis": "F", "from": "e"}},
        {"y": (4, 4, 1)}),
    "history": (
        {"all": {"class": "cum_concat", "axis": "T", "out_spatial_dim": HISTORY, "from": "data"},
         "e": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": HISTORY, "from": ["data", "all"]},
         "y": {"class": "softmax_over_spatial", "axis": HISTORY, "from": "e"}},
        {"y": (4, 4, 1)}),
    "windows": (
        {"p": {**ENERGY, "n_out": 1},
         "y": {"class": "gauss_window_attention", "base": "data:other", "window_size": 3, "from": "p"}},
        {"y": (4, 4, 1)}),
    "step by step": ({"loop": LOOP}, {"loop/y": "computed step by step"}),
    "weights within a step": ({"loop": WITHIN}, {"loop/w": "not known outside of its loop"}),
    "masked": (
        {"one": {"class": "reduce", "mode": "sum", "axis": "F", "from": "data"},
         "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "one"},
         "y": {"class": "masked_computation", "mask": "mask", "from": "data", "unit": SELF}},
        {"y/output": (1, 1, 2)}),
    "branch": (
        {"c": {"class": "constant", "value": True, "dtype": "bool"},
         "y": {"class": "cond", "condition": "c", "true_layer": SELF, "false_layer": {**ENERGY, "n_out": 6}}},
        {"y/output": "in a loop or a branch"}),
    "frames of frames": (
        {"w": {"class": "window", "window_size": 3, "from": "data"},
         "x": {"class": "reinterpret_data", "set_axes": {"T": "stag:window"}, "from": "w"},
         "y": {**SELF, "from": "x"}},
        {"y": "along more than two axes of frames"}),
    "kept": ({"y": {**SELF, "initial_state": "keep_over_epoch"}}, {"y": "keys are also those of other batches"}),
}  # fmt: skip


def net_with(layers: dict[str, Any]) -> Network:
    last = list(layers)[-1]
    return net_of({**layers, last: {**layers[last], "is_output_layer": True}, **OUTPUT})


def first_sequence() -> dict[str, Any]:
    return {name: array[:1] for name, array in feed().items()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_which(name: str) -> None:
    """Sums of all rows are 1, where the weights are a softmax."""
    layers, expected = CASES[name]
    net = net_with(layers)
    found, hidden = weights_layers(net)
    reasons = {path: reason for path, reason in expected.items() if isinstance(reason, str)}
    assert hidden.keys() == reasons.keys() and all(reason in hidden[path] for path, reason in reasons.items())
    drawn = WeightsFunction(net, found).run(first_sequence()) if found else []
    sizes = {each.layer.path: (*each.size, len(each.heads)) for each in drawn}
    assert sizes == {path: size for path, size in expected.items() if path not in reasons}
    for each in drawn:
        assert (each.keys > 0.999).all() and (each.keys < each.size[1] + 0.001).all()  # the exponential of an entropy
        if name != "windows":
            np.testing.assert_allclose(each.mean.sum(axis=-1), 1, rtol=1e-5)
            np.testing.assert_allclose(each.heads.sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_size(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels are means of weights, padding is left out; the number of keys is exp of the entropy."""
    monkeypatch.setattr(weights, "MOST_PIXELS", 3)
    monkeypatch.setattr(weights, "MOST_HEAD_PIXELS", 2)
    net = net_of({"output": SELF})
    node = net.plan.by_path()["output"]

    def emit(values: Any) -> Any:
        lowered = net.lower(values, outputs=[node], with_losses=False)
        return emit_inner_weights(net.config, lowered, node)

    values = {name: array[row : row + 1] for name, array in feed().items()}
    length = int(values["data/size0"][0])
    full = net.feed_function(emit, ["data"])(values).numpy()[0, :, :length, :length]
    (drawn,) = WeightsFunction(net, weights_layers(net)[0]).run(values)

    def pooled(x: Any, most: int) -> Any:
        block = -(-length // most)
        places = range(0, length, block)
        return np.array([[x[i : i + block, j : j + block].mean() for j in places] for i in places])

    assert drawn.size == (length, length)
    np.testing.assert_allclose(drawn.mean, pooled(full.mean(axis=0), 3), rtol=1e-5)
    np.testing.assert_allclose(drawn.heads, [pooled(head, 2) for head in full], rtol=1e-5)
    entropy = -(full * np.log(full)).sum(axis=-1)
    np.testing.assert_allclose(drawn.keys, np.exp(entropy).mean(axis=-1), rtol=1e-5)


@pytest.mark.slow
def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many layers and heads some are drawn, and the page says so; its size does not grow with their number."""
    monkeypatch.setattr(examples, "_MOST_LAYERS", 4)
    monkeypatch.setattr(examples, "_MOST_HEADS", 3)
    stack = {"y0": {**SELF, "num_heads": 5, "total_key_dim": 5, "n_out": 5}}
    for number in range(1, 6):
        stack["y%d" % number] = {**stack["y0"], "from": "y%d" % (number - 1)}
    net = net_with(stack)
    model = Model(net, "", None, "dev", *weights_layers(net))
    seqs = [SeqReport("seq%d" % i, 4, {"ce": 1.0 / (i + 1)}, {}, batch=first_sequence()) for i in range(5)]
    section = examples.examples(model, seqs, 4, net.config)
    assert section is not None
    assert (
        "4 of 6 layers are drawn, evenly spread. The first 3 heads of a layer are drawn. Single heads" in section.body
    )
    assert all("y%d, mean of 5 heads" % number in section.body for number in (0, 5))
    assert section.body.count("<img") == 4 * 3 * 3 and section.body.count("<svg") == 4
    assert len(section.body) < 4 * 3 * 3 * 600 + 4 * 200e3


@pytest.mark.slow
def test_too_many_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 2 heads, 4 queries and 4 keys; the page says so, and draws what is smaller."""
    monkeypatch.setattr(weights, "MOST_WEIGHTS", 31)
    net = net_with({"small": {**SELF, "num_heads": 1}, "large": {**SELF, "from": "small"}})
    model = Model(net, "", None, "dev", *weights_layers(net))
    section = examples.examples(model, [SeqReport("seq", 4, {}, {}, batch=first_sequence())], 1, net.config)
    assert section is not None and "Too many weights to draw, 4 queries and 4 keys: large<" in section.body
    assert section.body.count("<svg") == 1 and "<img" not in section.body


def test_picture() -> None:
    """What the encoder writes is what another program reads."""
    from matplotlib import image

    pixels = np.random.default_rng(1).integers(0, 256, (5, 7), dtype=np.uint8)

    np.testing.assert_array_equal(image.imread(io.BytesIO(grey_png(pixels))) * 255, pixels)
