"""Attention weights that layers compute inside: with them, numpy computes what the layer gives out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.inner_weights import emit_inner_weights, inner_weights_template
from returnn_tf.compiler.network import Network
from returnn_tf.config import ConfigError
from returnn_tf.graph.layer import Node
from returnn_tf.graph.registry import LAYERS
from tests.layers.nets import LENS, feed, net_of

SELF = {"class": "self_attention", "num_heads": 2, "total_key_dim": 6, "n_out": 4, "from": "data"}
SHIFT = {"class": "relative_positional_encoding", "n_out": 3, "clipping": 2, "from": "data"}
MEAN = {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}
POSITION = {
    "score": {"class": "linear", "activation": "sigmoid", "n_out": 1, "from": "data"},
    "position": {"class": "eval", "eval": "4. * source(0)", "from": "score"},
}


def of_shift(**options: Any) -> dict[str, Any]:
    return {"shift": {**SHIFT, **options}, "y": {**SELF, "key_shift": "shift"}}


def in_loop(layers: dict[str, Any]) -> dict[str, Any]:
    unit = {
        "x": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data:source"},
        **layers,
        "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["y", "prev:output"]},
    }
    unit["y"] = {**unit["y"], "is_output_layer": True}
    return {"loop": {"class": "rec", "unit": unit, "from": "data"}}


def nested(layers: dict[str, Any], times: int) -> dict[str, Any]:
    for _ in range(times):
        inner = {**layers, "output": {"class": "copy", "from": "y"}}
        layers = {"y": {"class": "subnetwork", "from": "data", "subnetwork": inner}}
    return layers


#: Layers "y" of self-attention: the layers, what y attends to and its path.
SELF_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"y": SELF}, "y"),
    "one head": ({"y": {**SELF, "num_heads": 1}}, "y"),
    "left only": ({"y": {**SELF, "attention_left_only": True}}, "y"),
    "dropout of weights": ({"y": {**SELF, "attention_dropout": 0.5}}, "y"),
    "relative positions": (of_shift(), "y"),
    "few relative positions": (of_shift(clipping=1), "y"),
    "relative positions, left only": ({**of_shift(), "y": {**of_shift()["y"], "attention_left_only": True}}, "y"),
    "fixed relative positions": (of_shift(fixed=True), "y"),
    "positions with offset": (of_shift(query_offset=1), "y"),
    "more axes": ({"y": {**SELF, "from": "data:wide"}}, "y"),
    "padding from above": (
        {"x": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"}, "y": {**SELF, "from": "x"}}, "y"),
    "subnetwork": (nested({"y": SELF}, 1), "y/y"),
    "deep subnetwork": (nested({"y": {**SELF, "attention_left_only": True}}, 3), "y/y/y/y"),
    "all steps of a loop": (in_loop({"y": {**SELF, "from": "x"}}), "loop/y"),
    "all steps of a loop, relative positions": (
        in_loop({"shift": {**SHIFT, "from": "x"}, "y": {**SELF, "from": "x", "key_shift": "shift"}}), "loop/y"),
}  # fmt: skip
#: Layers "y" that sum the base, "data:other" unless given.
BASE = {"base": "data:other", "base_ctx": "data:other"}
BASE_CASES: dict[str, dict[str, Any]] = {
    "dot, one query": {"x": MEAN, "y": {"class": "dot_attention", **BASE, "from": "x"}},
    "dot": {"y": {"class": "dot_attention", **BASE, "from": "data"}},
    "dot, factor": {"y": {"class": "dot_attention", "energy_factor": 0.5, **BASE, "from": "data"}},
    "concat, one query": {"x": MEAN, "y": {"class": "concat_attention", **BASE, "from": "x"}},
    "concat": {"y": {"class": "concat_attention", **BASE, "from": "data"}},
    "dot in a loop": in_loop({
        "y": {"class": "dot_attention", "base": "base:data:other", "base_ctx": "base:data:other", "from": "x"}}),
    **{
        "window of %d, %s positions" % (size, inner): {
            **POSITION,
            "y": {"class": "gauss_window_attention", "base": "data:other", "window_size": size, "inner_size": inner,
                  "from": "position"},
        }
        for size, inner in [(1, None), (3, None), (7, None), (4, 3)]
    },
}  # fmt: skip


def layer_at(net: Network, path: str) -> Node:
    return next(node for node in net.plan.visible_nodes() if node.path == path)


def weights_of(net: Network, path: str, *, train: bool = False) -> tuple[Any, Any, list[str]]:
    """Return the output of a layer, its weights [batch, ..., queries, keys], and the kinds of axes of these."""
    (shown,) = net.plan.find_nodes([path])  # of a loop: its values outside
    node = layer_at(net, path)
    template = inner_weights_template(net.plan, node)

    def emit(values: dict[str, Any]) -> Any:
        lowered = net.lower(values, train=train, outputs=[shown, node], with_losses=False)
        return lowered.lowering.values.outputs[shown], emit_inner_weights(net.config, lowered, node)

    output, weights = net.feed_function(emit, net.data_keys([shown, node], with_losses=False))(feed())
    assert len(weights.shape) == template.rank and template.dims[-1].is_dynamic()
    order = sorted(range(template.rank), key=lambda axis: (not template.dims[axis].is_batch, axis))
    axes = sorted(range(shown.output.rank), key=lambda axis: (not shown.output.dims[axis].is_batch, axis))
    marks = ["queries" if axis == template.time_axis else template.dims[axis].description for axis in order]
    return np.transpose(output, axes), np.transpose(weights, order), marks


@pytest.mark.parametrize("name", sorted(SELF_CASES))
def test_self_attention(name: str) -> None:
    """Rows sum to 1, no key is seen that must not be, and weights times values are the output."""
    layers, path = SELF_CASES[name]
    net = net_of({**layers, "output": {"class": "copy", "from": path}})
    output, weights, marks = weights_of(net, path)
    layer: Any = layer_at(net, path).layer
    assert marks[-2] == "queries" and weights.shape[-3] == layer.num_heads
    source = net.run(feed(), fetch=[layer.sources[0].path]).layers[layer.sources[0].path].value
    x = np.moveaxis(source, 1, -2)  # [batch, others, time, in]
    heads = np.split(x @ net.get_param_values()[layer.node.scope + "/QKV"], layer.num_heads, axis=-1)
    values = np.stack([head[..., 2 * 6 // layer.num_heads :] for head in heads], axis=-3)
    expected = np.moveaxis(weights @ values, -3, -2)  # [batch, others, time, head, value]
    expected = expected.reshape((*expected.shape[:-2], -1))
    causal = layer.attention_left_only or path == "loop/y"
    for b, n in enumerate(LENS):
        rows = weights[b, ..., :n, :]
        np.testing.assert_allclose(rows.sum(axis=-1), 1, atol=1e-6)
        assert (rows >= 0).all() and not rows[..., n:].any()
        seen = np.tril(np.ones([n, n], bool)) if causal else np.ones([n, n], bool)
        assert ((rows[..., :n] > 0) == seen).all()
        np.testing.assert_allclose(output[b, ..., :n, :], expected[b, ..., :n, :], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(BASE_CASES))
def test_weights_of_a_base(name: str) -> None:
    """Weights times frames of the base are the output; where they are a softmax, rows sum to 1."""
    path = "loop/y" if "loop" in BASE_CASES[name] else "y"
    net = net_of({**BASE_CASES[name], "output": {"class": "copy", "from": path}})
    output, weights, marks = weights_of(net, path)
    assert ("queries" in marks) == ("one query" not in name)
    base = feed()["other"]
    for b, n in enumerate(LENS):
        rows = weights[b] if "queries" not in marks else np.moveaxis(weights[b], marks.index("queries") - 1, 0)[:n]
        found = output[b] if "queries" not in marks else output[b, :n]
        assert not rows[..., n:].any()
        np.testing.assert_allclose(found, rows @ base[b], rtol=1e-4, atol=1e-5)
        if "window" not in name:
            np.testing.assert_allclose(rows.sum(axis=-1), 1, atol=1e-6)


def test_every_class() -> None:
    """Of layers that say to have such weights; all others refuse."""
    cases = [layers for layers, _ in SELF_CASES.values()] + list(BASE_CASES.values())
    tested = {layer["class"] for layers in cases for layer in layers.values()}
    assert {name for name, cls in LAYERS.items() if cls.has_inner_weights} <= tested
    net = net_of({"output": {"class": "copy", "from": "data"}})
    with pytest.raises(ConfigError, match="it computes none inside"):
        inner_weights_template(net.plan, net.plan.by_path()["output"])


def test_before_dropout() -> None:
    """Also in training, where the output has it."""
    net = net_of({"output": {**SELF, "attention_dropout": 0.5}}, train=True)
    plain, dropped = (weights_of(net, "output", train=train) for train in (False, True))
    np.testing.assert_array_equal(plain[1], dropped[1])
    assert np.abs(plain[0] - dropped[0]).max() > 1e-3


@pytest.mark.parametrize(
    "layers, path, reason",
    [
        ({"y": {**SELF, "initial_state": "keep_over_epoch"}}, "y", "keys are also those of other batches"),
        (
            in_loop({"x2": {"class": "combine", "kind": "add", "from": ["x", "prev:z"]},
                     "y": {**SELF, "from": "x2"},
                     "z": {"class": "linear", "activation": None, "n_out": 3, "from": "y"}}),
            "loop/y",
            "computed step by step",
        ),
    ],
)  # fmt: skip
def test_not_known(layers: dict[str, Any], path: str, reason: str) -> None:
    net = net_of({**layers, "output": {"class": "copy", "from": path}})
    with pytest.raises(ConfigError, match=reason):
        inner_weights_template(net.plan, layer_at(net, path))
