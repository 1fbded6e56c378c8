"""Layers that skip padding in training: the same losses, gradients and masks of dropout; what keeps all frames."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.compiler import packed_layers
from returnn_tf.native.fused.pack import pack_ops
from returnn_tf.native.portable import portable_ops
from returnn_tf.util.lazy_tf import tf
from tests.tiers import usual

Net = dict[str, dict[str, Any]]
EACH = {"*": None}
LENGTHS = np.array([9, 3, 0, 5], "int32")
FEED = {
    "data": np.random.RandomState(1).normal(0, 1, (4, 9, 5)).astype("float32"), "data/size0": LENGTHS,
    "classes": np.random.RandomState(2).randint(0, 7, (4, 9)).astype("int32"), "classes/size0": LENGTHS,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert pack_ops() is not None, "the native op has to compile where the tests run"


@pytest.fixture(autouse=True)
def _also_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack chains however little work they have."""
    monkeypatch.setattr(packed_layers, "_WORK_PER_NUMBER", 0)


def linear(source: Any, n_out: int, activation: Any = None, **options: Any) -> dict[str, Any]:
    return {"class": "linear", "activation": activation, "n_out": n_out, "from": source, **options}


def feed_forward(width: int) -> Net:
    """Dropout of each entry, and of whole columns."""
    return {
        "a": linear("data", width, "tanh"),
        "b": linear("a", width, "relu", dropout=0.3, dropout_noise_shape=EACH),
        "c": linear(["a", "b"], width, "sigmoid", dropout=0.2),
        "output": {"class": "softmax", "loss": "ce", "from": "c"},
    }


def transformer(width: int) -> Net:
    """A block of an encoder, and a BLSTM, which has its own way with padding."""
    return {
        "in": linear("data", width),
        "pos": {"class": "positional_encoding", "add_to_input": True, "from": "in"},
        "norm": {"class": "layer_norm", "from": "pos"},
        "att": {"class": "self_attention", "num_heads": 2, "total_key_dim": 8, "n_out": width, "from": "norm"},
        "out": linear("att", width),
        "drop": {"class": "dropout", "dropout": 0.2, "dropout_noise_shape": EACH, "from": "out"},
        "sum": {"class": "combine", "kind": "add", "from": ["pos", "drop"]},
        "gates": linear("sum", 2 * width),
        "gated": {"class": "gating", "activation": "swish", "from": "gates"},
        "sum2": {"class": "combine", "kind": "add", "from": ["sum", "gated"]},
        "lstm": {"class": "rec", "unit": "lstm", "direction": -1, "n_out": 4, "from": "sum2"},
        "both": {"class": "copy", "from": ["sum2", "lstm"]},
        "output": {"class": "softmax", "loss": "ce", "from": "both"},
    }


def make_trainer(net: Net, **settings: Any) -> Any:
    config = returnn_tf.Config({
        "extern_data": {"data": {"dim": 5}, "classes": {"dim": 7, "sparse": True}}, "network": net,
        "optimizer": {"class": "sgd"}, "learning_rate": 0.01, "random_seed": 1, "behavior_version": 21, **settings,
    })  # fmt: skip
    return returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)


def train(net: Net, portable: bool = False, steps: int = 3, **settings: Any) -> tuple[dict[str, Any], set[str]]:
    """Run some steps.

    :return: losses and parameters; the types of ops in the graph
    """
    trainer = make_trainer(net, **settings)
    rng, values = np.random.RandomState(1), trainer.net.get_param_values()
    trainer.net.set_param_values({name: rng.normal(0, 0.1, values[name].shape) for name in sorted(values)})
    with portable_ops() if portable else contextlib.nullcontext():
        losses = [trainer.step(FEED).total_loss for _ in range(steps)]
    types = {op.type for graph in trainer.steps.function.graphs for op in graph.graph.get_operations()}
    return {"losses": losses, **trainer.net.get_param_values()}, types


@pytest.mark.slow
@pytest.mark.parametrize(
    "net",
    [
        feed_forward(6),
        pytest.param(feed_forward(128), marks=pytest.mark.long),
        pytest.param(transformer(8), marks=pytest.mark.long),
        transformer(128),
    ],
    ids=["feed-forward of 6", "feed-forward", "transformer of 8", "transformer"],
)
def test_steps_are_the_same(net: Net) -> None:
    """Of narrow layers, whose dropout has no native op, too."""
    here, types = train(net)
    plain, plain_types = train(net, portable=True)
    assert "RtfPack" in types and "RtfPack" not in plain_types
    assert plain["losses"][2] < plain["losses"][0]
    for name, value in plain.items():
        np.testing.assert_allclose(here[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def between(**layer: Any) -> Net:
    """A chain in which a layer may see padding."""
    return {
        "a": linear("data", 6, "tanh"),
        "b": {"from": "a", **layer},
        "output": {"class": "softmax", "loss": "ce", "from": "b"},
    }


MATRIX = {"W": {"layer_output": "matrix"}, "b": None}
SAME: dict[str, tuple[Net, set[str]]] = {
    "code over frames": (between(**{"class": "activation", "activation": "x - tf.reduce_max(x, 1, True)"}), {"output"}),
    "code in a linear layer": (between(**linear("a", 6, "x - tf.reduce_max(x, 1, True)")), {"output"}),
    "gradient in the padding": (between(**{"class": "scaled_grad", "scale": 0.5, "shift": 0.1}), {"output"}),
    "gradient over frames": (
        between(**{"class": "scaled_grad", "scale": 0.5, "clip_max_axis": "T"}), {"output"},
    ),
    "statistics of the batch": (between(**linear("a", 6, batch_norm={"masked_time": False})), {"output"}),
    "statistics without padding": (between(**linear("a", 6, batch_norm={"masked_time": True})), {"a", "output"}),
    "dropout of parameters": (between(**linear("a", 6, param_dropout=0.2)), {"a", "b", "output"}),
    "a layer as parameter": (
        {**between(**linear("a", 6, reuse_params={"map": MATRIX})), "matrix": {"class": "variable", "shape": (6, 6)}},
        {"a", "b", "output"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    usual(SAME, set(SAME) - {"code in a linear layer", "gradient over frames", "statistics without padding"}),
)
def test_what_sees_padding(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, gradients and statistics over frames get the padding; parameters are no frames."""
    net, expected = SAME[case]
    assert packed(net) == expected
    here, _ = train(net, steps=1)
    monkeypatch.setattr(packed_layers, "pack_ops", lambda: None)
    plain, _ = train(net, steps=1)
    for name, value in plain.items():
        np.testing.assert_allclose(here[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def packed(net: Net, *, train: bool = True, **settings: Any) -> set[str]:
    """Return the layers that skip padding."""
    network, found = make_trainer(net, **settings).net, set()

    def run(feed: Any) -> Any:
        graph = network.lower(feed, train=train, step=tf.constant(1, tf.int64))
        found.update(node.path for node in graph.lowering.packing.nodes)
        return graph.objective

    network.feed_function(run)(FEED)
    return found


def with_layer(source: str, **layer: Any) -> Net:
    """The feed-forward network with a layer before its output."""
    return {**feed_forward(6), "other": {"from": source, **layer}, "output": linear("other", 7, "softmax", loss="ce")}


CONV = {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": 6, "activation": None}
CASES: dict[str, tuple[Net, dict[str, Any], set[str]]] = {
    "all": (feed_forward(6), {}, {"a", "b", "c", "output"}),
    "convolution": (with_layer("c", **CONV), {}, {"output"}),
    "eval": (with_layer("c", **{"class": "eval", "eval": "source(0) * 2."}), {}, {"output"}),
    "batch_norm": (with_layer("c", **{"class": "batch_norm", "masked_time": False}), {}, {"output"}),
    "own masks for sequences": (
        with_layer("c", **{"class": "dropout", "dropout": 0.1, "dropout_noise_shape": {"B": None}}), {}, {"output"},
    ),
    "checks for NaN": (feed_forward(6), {"debug_add_check_numerics_ops": True}, set()),
    "second gradients": (feed_forward(6), {"maximize_grad_norm": 0.1}, set()),
    "bfloat16": (feed_forward(6), {"mixed_precision": "bfloat16"}, {"a", "b", "c", "output"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_which_layers_skip_padding(case: str) -> None:
    """None whose padding another one sees, e.g. in the windows of a convolution, or the statistics of a batch."""
    net, settings, expected = CASES[case]
    assert packed(net, **settings) == expected


def test_padding_is_put_back_for_what_reads_it_alone() -> None:
    network = make_trainer(transformer(8)).net
    function = network.feed_function(lambda feed: network.lower(feed, train=True, step=tf.constant(1, tf.int64)).losses)
    ops = function.trace().graph.get_operations()
    put_back = [op.outputs[0] for op in ops if op.type == "RtfUnpack"]
    assert put_back and all(value.consumers() for value in put_back)
    assert len(put_back) < len(packed(transformer(8)))


@pytest.mark.slow
def test_not_in_evaluation_nor_without_native_ops() -> None:
    assert not packed(feed_forward(6), train=False)
    with portable_ops():
        assert not packed(feed_forward(6))


def test_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains whose copies would take longer than what they save."""
    monkeypatch.undo()
    assert not packed(feed_forward(6))


def test_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """True: also those for which it does not pay; False: none."""
    monkeypatch.undo()
    assert packed(feed_forward(6), skip_padding=True) == {"a", "b", "c", "output"}
    assert not packed(feed_forward(6), train=False, skip_padding=True)
    assert not packed(feed_forward(256), skip_padding=False)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [LENGTHS, np.array([9, 9, 9, 8], "int32"), np.array([9] * 4, "int32")])
def test_steps_with_little_padding(lengths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setting, these are packed, too, and give the same."""
    monkeypatch.setitem(FEED, "data/size0", lengths)
    monkeypatch.setitem(FEED, "classes/size0", lengths)
    here, types = train(feed_forward(6), skip_padding=True, steps=2)
    plain, plain_types = train(feed_forward(6), skip_padding=False, steps=2)
    assert "RtfPack" in types and "RtfPack" not in plain_types
    for name, value in plain.items():
        np.testing.assert_allclose(here[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("types", ["bfloat16", "float16"])
def test_steps_with_products_of_few_digits(types: str) -> None:
    """What is packed is float32."""
    settings = {"mixed_precision": types, "loss_scaling": 8.0, "steps": 2}
    here, ops = train(transformer(8), skip_padding=True, **settings)
    plain, plain_ops = train(transformer(8), skip_padding=False, **settings)
    assert "RtfPack" in ops and "RtfPack" not in plain_ops
    for name, value in plain.items():
        difference = np.linalg.norm(np.subtract(here[name], value))
        assert difference < 1e-2 * np.linalg.norm(value), name


REFUSED: dict[str, tuple[Net, dict[str, Any], str]] = {
    "nothing": (
        {"output": {**CONV, "from": "data", "n_out": 7, "activation": "softmax", "loss": "ce"}},
        {},
        "none works frame by frame",
    ),
    "checks": (feed_forward(6), {"debug_add_check_numerics_ops": True}, "with checks or prints of all outputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_setting_without_effect_is_an_error(case: str) -> None:
    net, settings, words = REFUSED[case]
    with pytest.raises(returnn_tf.ConfigError, match="skip_padding = True, but no layer can skip padding: " + words):
        packed(net, skip_padding=True, **settings)
