"""Layers whose products of all frames are those of the native op, where it is faster than TensorFlow's."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.native import product
from returnn_tf.native.library import load
from returnn_tf.util.lazy_tf import tf
from tests.tiers import usual

Net = dict[str, dict[str, Any]]
SIZES = np.array([7, 4, 5], "int32")
FEED = {
    "data": np.random.RandomState(1).normal(0, 1, (3, 7, 70)).astype("float32"), "data/size0": SIZES,
    "classes": np.random.RandomState(2).randint(0, 9, (3, 7)).astype("int32"), "classes/size0": SIZES,
}  # fmt: skip
OUT = {"class": "softmax", "loss": "ce", "target": "classes"}


def linear(source: Any = "data", **options: Any) -> dict[str, Any]:
    return {"class": "linear", "activation": "tanh", "n_out": 66, "from": source, **options}


IN_EACH_STEP = {
    "s": {"class": "rec", "unit": "lstm", "n_out": 140, "from": ["prev:output", "data:source"]},
    "parts": {"class": "split_dims", "axis": "F", "dims": (2, 70), "from": "s"},
    "x": linear("parts"),
    "output": {"class": "merge_dims", "axes": ["dim:2", "F"], "from": "x", "n_out": 132},
}
USED: dict[str, Net] = {
    "linear": {"x": linear()},
    "transposed": {"x": linear(use_transposed_weights=True)},
    "without activation": {"x": linear(activation=None)},
    "gradient filter": {"x": linear(grad_filter=100.0)},
    "two sources": {"a": linear(), "x": linear(["a", "data"])},
    "two axes": {
        "w": {"class": "window", "window_size": 3, "from": "data"}, "y": linear("w"),
        "x": {"class": "reduce", "mode": "sum", "axes": "stag:window", "from": "y"},
    },
    "attention": {
        "x": {"class": "self_attention", "num_heads": 2, "total_key_dim": 64, "n_out": 64, "from": "data"},
    },
    "in a subnetwork": {"x": {"class": "subnetwork", "from": "data", "subnetwork": {"output": linear("data")}}},
    "in each step of a loop": {"x": {"class": "rec", "unit": IN_EACH_STEP, "from": "data"}},
    "recurrent": {"x": {"class": "rec", "unit": "lstm", "n_out": 64, "from": "data"}},
}  # fmt: skip
NOT_USED: dict[str, Net] = {
    "narrow": {"x": linear(n_out=60)},
    "a row for each sequence": {
        "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"}, "y": linear("mean"),
        "first": {"class": "slice", "axis": "F", "slice_end": 66, "from": "data"},
        "x": {"class": "combine", "kind": "add", "from": ["first", "y"]},
    },
}  # fmt: skip


#: op, name of its kernels, network
RECURRENT: list[tuple[str, str, Net]] = [
    *(
        (unit, unit.capitalize(), {"x": {"class": "rec", "unit": unit, "n_out": 64, "from": "data"}})
        for unit in ("lstm", "gru", "slstm")
    ),
    ("mdlstm", "MdLstm", {
        "image": {"class": "split_dims", "axis": "F", "dims": (7, 10), "from": "data"},
        "pixels": {"class": "mdlstm", "n_out": 20, "directions": 2, "from": "image"},
        "x": {"class": "reduce", "mode": "mean", "axes": "dim:7", "from": "pixels"},
    }),
    ("mdlstm", "MdLstm", {"x": {"class": "twod_lstm", "n_out": 20, "from": ["data", "data"]}}),
]  # fmt: skip


def config_of(net: Net, **settings: Any) -> returnn_tf.Config:
    return returnn_tf.Config({
        "extern_data": {"data": {"dim": 70}, "classes": {"dim": 9, "sparse": True}},
        "network": {**net, "output": {**OUT, "from": "x"}}, "learning_rate": 0.1, "random_seed": 1,
        "behavior_version": 21, **settings,
    })  # fmt: skip


def train(net: Net, monkeypatch: pytest.MonkeyPatch, native: bool, **settings: Any) -> tuple[dict[str, Any], set[str]]:
    """Return losses and parameters of two steps, and the types of ops in the graph."""
    forms = (product._VECTORS._replace(least_size=1),) if native else ()
    monkeypatch.setattr(product, "_forms", lambda *_: forms)
    monkeypatch.setattr(product, "_library_has", lambda _: True)
    config = config_of(net, **settings)
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    rng, values = np.random.RandomState(1), trainer.net.get_param_values()
    trainer.net.set_param_values({name: rng.normal(0, 0.1, values[name].shape) for name in sorted(values)})
    losses = [trainer.step(FEED).total_loss for _ in range(2)]
    types = set().union(*(_types(graph.graph) for graph in trainer.steps.function.graphs))
    return {"losses": losses, **trainer.net.get_param_values()}, types


@functools.cache
def train_plainly(name: str) -> tuple[dict[str, Any], set[str]]:
    """Return what `train` does for a network of `USED`, with TensorFlow's products of float32."""
    with pytest.MonkeyPatch.context() as patch:
        return train(USED[name], patch, native=False)


def _types(graph: Any) -> set[str]:
    return {node.op for node in _nodes(graph)}


def _nodes(graph: Any) -> list[Any]:
    """Return the ops of a graph and of the functions that it calls."""
    found = graph.as_graph_def()
    return [*found.node, *(node for function in found.library.function for node in function.node_def)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    usual(USED, ["transposed", "gradient filter", "two axes", "attention", "in each step of a loop", "recurrent"]),
)
def test_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and parameters, thus gradients, by both."""
    load("product", product.self_test)
    here, types = train(USED[name], monkeypatch, native=True)
    plain, plain_types = train_plainly(name)
    assert "RtfProduct" in types and "RtfProduct" not in plain_types
    for key, value in plain.items():
        np.testing.assert_allclose(here[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(USED, ["transposed", "two axes", "in a subnetwork", "in each step of a loop"]))
def test_same_steps_in_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly the same as in float32, as by TensorFlow."""
    load("product", product.self_test)
    exact, _ = train_plainly(name)
    here, types = train(USED[name], monkeypatch, native=True, mixed_precision="bfloat16")
    plain, plain_types = train(USED[name], monkeypatch, native=False, mixed_precision="bfloat16")
    assert "RtfProduct" in types and "RtfProduct" not in plain_types
    for key, value in exact.items():
        size = np.linalg.norm(value)
        errors = [np.linalg.norm(np.subtract(found[key], value)) / size for found in (here, plain)]
        assert 0 < errors[0] < 1e-2 and errors[1] < 1e-2, key


@pytest.mark.slow
@pytest.mark.parametrize("op, kernels, net", RECURRENT, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("settings", [{}, {"mixed_precision": "bfloat16"}], ids=str)
def test_products_of_recurrences_are_rounded(op: str, kernels: str, net: Net, settings: dict[str, Any]) -> None:
    """With bfloat16, in training where the CPU multiplies pairs of such numbers; other graphs may run elsewhere."""
    kinds = "Rtf" + kernels, "Rtf%sGrad" % kernels
    rounds = bool(settings) and product.rounds(op, tf.float32, "bfloat16")
    config = config_of(net, **settings)
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    trainer.step(FEED)
    evaluate = trainer.net.feed_function(lambda inputs: trainer.net.lower(inputs, train=False).objective)
    evaluate(trainer.tensors(FEED))
    for function, expected in (
        (trainer.steps.function, {(kind, rounds) for kind in kinds}),
        (evaluate, {(kinds[0], False)}),
    ):
        nodes = [node for graph in function.graphs for node in _nodes(graph.graph)]
        assert {(node.op, node.attr["rounded"].b) for node in nodes if node.op in kinds} == expected


@pytest.mark.parametrize("name", NOT_USED)
def test_where_it_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For small matrices and few rows."""
    assert "RtfProduct" not in train(NOT_USED[name], monkeypatch, native=True)[1]


@pytest.mark.parametrize("name", ["linear", "attention"])
def test_only_in_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that are exported need no library for these layers."""
    monkeypatch.setattr(product, "native_op", lambda *_: pytest.fail("it is not to be loaded"))
    monkeypatch.setattr(product, "_forms", lambda *_: (product._VECTORS._replace(least_size=1),))
    net = returnn_tf.Network.from_config(config_of(USED[name]))

    net.run(FEED)
