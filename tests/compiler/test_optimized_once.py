"""`OptimizedOnce`: TensorFlow's optimizer passes over the graph of a training step once; other calls are as usual."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import returnn_tf
from returnn_tf.compiler.optimized_once import OptimizedOnce
from returnn_tf.util.lazy_tf import tf
from tests.feeds import random_feed

CONTEXT = importlib.import_module("tensorflow.python.eager.context").context


def rewrites() -> Any:
    """Return how the graph of a function that is called now would be optimized."""
    config = tf.compat.v1.ConfigProto.FromString(CONTEXT().function_call_options.config_proto_serialized)
    return config.graph_options.rewrite_options


def test_for_this_call_only() -> None:
    seen: list[Any] = []
    usual = rewrites()
    OptimizedOnce(lambda *_: seen.append(rewrites()))(1, 2)
    assert (seen[0].meta_optimizer_iterations, seen[0].memory_optimization) == (usual.ONE, usual.NO_MEM_OPT)
    assert seen[0].layout_optimizer == usual.layout_optimizer and rewrites() == usual != seen[0]


def test_usual_again_after_an_error() -> None:
    usual = rewrites()
    with pytest.raises(ZeroDivisionError):
        OptimizedOnce(lambda: 1 // 0)()
    assert rewrites() == usual


def test_is_the_function_otherwise() -> None:
    function = tf.function(lambda x: {"y": 2.0 * x + 1.0}, autograph=False)
    concrete = function.get_concrete_function(tf.TensorSpec([None], tf.float32))
    once = OptimizedOnce(concrete)
    assert once.graph is concrete.graph and once(tf.constant([3.0]))["y"].numpy() == [7.0]


@pytest.mark.parametrize("gpu", [False, True])
def test_training_on_cpus(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    found = ["GPU:0"] if gpu else []
    config = returnn_tf.Config({
        "extern_data": {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}}, "optimizer": {"class": "sgd"},
        "network": {"output": {"class": "softmax", "target": "classes", "loss": "ce", "from": "data"}},
    })  # fmt: skip
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    tensors = trainer.tensors(random_feed(trainer.net.extern_data))
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda *_: found)
    assert isinstance(trainer.steps.function.graph(tensors), OptimizedOnce) != gpu
