"""Attention written as products, softmax and dropout in their own layers: one native op in training, same numbers."""

from __future__ import annotations

import contextlib
from typing import Any, Optional

import numpy as np
import pytest

import returnn_tf
from returnn_tf.native.attention import attention_ops
from returnn_tf.native.portable import portable_ops
from returnn_tf.tensor import SpatialDim
from returnn_tf.util.lazy_tf import tf

DIM, HEADS = 128, 2
SIZE = DIM // HEADS
LOW = {"mixed_precision": "bfloat16"}
LENGTHS = np.array([9, 4, 0], "int32")
FEED = {
    "data": np.random.RandomState(1).normal(0, 1, (3, 9, 5)).astype("float32"), "data/size0": LENGTHS,
    "classes": np.random.RandomState(2).randint(0, 7, (3, 9)).astype("int32"), "classes/size0": LENGTHS,
}  # fmt: skip
Net = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert attention_ops() is not None, "the native attention has to compile where the tests run"


def linear(source: str, n_out: int = DIM, **options: Any) -> dict[str, Any]:
    return {"class": "linear", "activation": None, "with_bias": False, "n_out": n_out, "from": source, **options}


def heads(net: Net, prefix: str, source: str) -> None:
    net[prefix + "0"] = linear(source)
    net[prefix] = {"class": "split_dims", "axis": "F", "dims": (HEADS, SIZE), "from": prefix + "0"}


def dropped(source: str, **options: Any) -> dict[str, Any]:
    return {"class": "dropout", "dropout": 0.2, "dropout_noise_shape": {"*": None}, "from": source, **options}


def merged(source: str) -> dict[str, Any]:
    return {"class": "merge_dims", "axes": ["dim:%d" % HEADS, "dim:%d" % SIZE], "from": source}


KEYS = SpatialDim("keys")
WEIGHTS = {"class": "softmax_over_spatial", "axis": KEYS, "energy_factor": SIZE**-0.5, "from": "energy"}


def self_attention(*, keys: Optional[dict[str, Any]] = None) -> Net:
    """Of frames to all of the sequence."""
    net: Net = {"in": linear("data")}
    for prefix in "qkv":
        heads(net, prefix, "in")
    other = keys or {"class": "reinterpret_data", "set_dim_tags": {"T": KEYS}}
    net.update({
        "keys": {**other, "from": "k"}, "values": {**other, "from": "v"},
        "energy": {"class": "dot", "reduce": "F", "from": ["q", "keys"]},
        "weights": WEIGHTS,
        "drop": dropped("weights"),
        "heads": {"class": "dot", "reduce": KEYS, "from": ["drop", "values"]},
        "merged": merged("heads"),
    })  # fmt: skip
    return net


def causal() -> Net:
    """Of frames to those before them: keys and values without copies."""
    net = self_attention(keys={"class": "cum_concat", "out_spatial_dim": KEYS})
    net["values"] = {"class": "cum_concat", "out_spatial_dim": KEYS, "from": "v"}
    return net


def scaled() -> Net:
    """Return energies multiplied by layers of their own, no dropout, one head."""
    return {
        "in": linear("data"), "q": linear("in"), "k": linear("in"), "v": linear("in"),
        "keys": {"class": "reinterpret_data", "set_dim_tags": {"T": KEYS}, "from": "k"},
        "values": {"class": "reinterpret_data", "set_dim_tags": {"T": KEYS}, "from": "v"},
        "energy0": {"class": "dot", "reduce": "F", "from": ["keys", "q"]},
        "energy1": {"class": "eval", "eval": "source(0) / 8.0", "from": "energy0"},
        "energy": {"class": "eval", "eval": "source(0) * 0.5", "from": "energy1"},
        "weights": {"class": "softmax_over_spatial", "axis": KEYS, "from": "energy"},
        "copied": {"class": "copy", "from": "weights"},
        "merged": {"class": "generic_attention", "weights": "copied", "base": "values"},
    }  # fmt: skip


def decoder(version: int) -> Net:
    """From the frames of a decoder, in a loop that nothing needs step by step, to those of an encoder."""
    net: Net = {"in": linear("data")}
    for prefix in "kv":
        heads(net, prefix, "in")
    axes = {"red1": "F", "red2": "F", "var1": "T", "var2": "T?" if version < 3 else None}
    unit: Net = {
        "emb": linear("prev:output", initial_output=0),
        "energy": {"class": "dot", **axes, "from": ["base:k", "q"]},
        "weights": {**WEIGHTS, "axis": "T"},
        "drop": dropped("weights"),
        "heads": {"class": "generic_attention", "weights": "drop", "base": "base:v"},
        "merged": merged("heads"),
        "p": {"class": "softmax", "loss": "ce", "target": "classes", "from": "merged"},
        "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "p", "initial_output": 0},
    }
    heads(unit, "q", "emb")
    net["output"] = {"class": "rec", "from": [], "target": "classes", "unit": unit}
    return net


def with_loss(net: Net) -> Net:
    return {**net, "output": {"class": "softmax", "loss": "ce", "from": "merged"}}


def make_network(net: Net, version: int = 21, **settings: Any) -> tuple[Any, Any]:
    """Return config and network."""
    config = returnn_tf.Config({
        "extern_data": {"data": {"dim": 5}, "classes": {"dim": 7, "sparse": True}}, "network": net,
        "optimizer": {"class": "sgd"}, "learning_rate": 0.01, "random_seed": 1, "behavior_version": version, **settings,
    })  # fmt: skip
    return config, returnn_tf.Network.from_config(config, train=True)


def op_types(net: Net, *, train: bool) -> set[str]:
    """Return the types of the ops of the forward pass."""
    network, types = make_network(net)[1], set()

    def run(feed: Any) -> Any:
        objective = network.lower(feed, train=train, step=tf.constant(1, tf.int64)).objective
        types.update(op.type for op in objective.graph.get_operations())
        return objective

    network.feed_function(run)(FEED)
    return types


def train(net: Net, version: int, portable: bool, **settings: Any) -> tuple[Any, set[str]]:
    """Run three steps.

    :return: losses and parameters; the types of ops in the graph
    """
    config, network = make_network(net, version, **settings)
    rng = np.random.RandomState(1)
    values = network.get_param_values()
    network.set_param_values({name: rng.normal(0, 0.1, values[name].shape) for name in sorted(values)})
    trainer = returnn_tf.Trainer(network, config)
    with portable_ops() if portable else contextlib.nullcontext():
        losses = [trainer.step(FEED).total_loss for _ in range(3)]
    types = {op.type for graph in trainer.steps.function.graphs for op in graph.graph.get_operations()}
    return {"losses": losses, **network.get_param_values()}, types


def assert_the_same(net: Net, version: int = 21, *, fused: bool, **settings: Any) -> None:
    (here, types), (plain, plain_types) = (train(net, version, portable, **settings) for portable in (False, True))
    assert ("RtfAttentionGrad" in types) is fused and "RtfAttention" not in plain_types
    assert plain["losses"][2] < plain["losses"][0]
    for name, value in plain.items():
        np.testing.assert_allclose(here[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "net,version",
    [
        (with_loss(self_attention()), 21),
        pytest.param(with_loss(causal()), 21, marks=pytest.mark.long),
        (with_loss(scaled()), 21),
        (decoder(0), 0),
        pytest.param(decoder(21), 21, marks=pytest.mark.long),
    ],
    ids=["self", "causal", "scaled", "decoder", "decoder of today"],
)
def test_steps_are_the_same(net: Net, version: int) -> None:
    assert_the_same(net, version, fused=True)


@pytest.mark.slow
@pytest.mark.parametrize("net", [with_loss(self_attention()), decoder(21)], ids=["self", "decoder"])
def test_mixed_precision(net: Net) -> None:
    """The factors of the products are rounded by the op, so that losses are nearly the same."""
    (exact, _), (rounded, types) = (train(net, 21, portable=False, **low) for low in ({}, LOW))
    assert "RtfAttentionGrad" in types
    np.testing.assert_allclose(rounded["losses"], exact["losses"], rtol=1e-2)


def changed(**layers: dict[str, Any]) -> Net:
    net = self_attention()
    return with_loss({**net, **{name: {**net.get(name, {}), **options} for name, options in layers.items()}})


REDUCE = {"class": "reduce", "mode": "max", "axis": KEYS}
OTHERS = {
    "read by another layer": changed(more={**REDUCE, "from": "energy", "loss": "as_is"}),
    "with a loss": changed(weights={"loss": "as_is", "loss_scale": 0.01}),
    "window": changed(weights={"window_start": 0, "window_size": 4}),
    "weights with another gradient": changed(
        other={"class": "scaled_grad", "scale": 0.5, "from": "weights"}, drop={"from": "other"}
    ),
    "masks of several frames": changed(drop={"dropout_noise_shape": None}),
    "energies with an activation": changed(
        activated={"class": "activation", "activation": "tanh", "from": "energy"}, weights={"from": "activated"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_weights_are_computed(case: str) -> None:
    """What the op does not compute, or others need, is as it was."""
    assert "RtfAttention" not in op_types(OTHERS[case], train=True)


@pytest.mark.slow
def test_evaluation_keeps_its_ops() -> None:
    """Evaluation and export need no more libraries than before."""
    net = with_loss(self_attention())
    assert "RtfAttention" in op_types(net, train=True)
    assert not any(name.startswith("Rtf") for name in op_types(net, train=False))


@pytest.mark.long
def test_second_gradients() -> None:
    """Where gradients are differentiated again, by the form in TensorFlow."""
    assert_the_same(with_loss(self_attention()), fused=True, maximize_grad_norm=0.1)
