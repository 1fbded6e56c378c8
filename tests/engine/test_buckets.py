"""Gradients in buckets: which share a message, that it waits for its own gradients only, and what is computed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.settings.distributed import RING
from returnn_tf.engine.distributed.buckets import MEGABYTE, buckets, sum_in_buckets
from returnn_tf.engine.distributed.collectives import Collectives
from returnn_tf.engine.distributed.membership import Membership
from returnn_tf.engine.distributed.tf_collectives import TensorFlowCollectives
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.util.lazy_tf import tf
from tests import little_memory
from tests.feeds import random_feed
from tests.little_memory import LIMITED, Memory

F32, F16, F64 = "float32", "float16", "float64"


@pytest.mark.parametrize(
    "tensors,size,expected",
    [
        ([], 8, []),
        ([(F32, 1)] * 5, 8, [[0, 1], [2, 3], [4]]),
        ([(F32, 1)] * 3, 0, [[0], [1], [2]]),
        ([(F32, 1)] * 3, 1000, [[0, 1, 2]]),
        ([(F32, 1), (F32, 2), (F32, 1), (F32, 9)], 8, [[1], [0, 2], [3]]),  # full ones are by themselves
        ([(F32, 1), (F32, 1), (F32, 1), (F32, 2)], 12, [[0, 1, 2], [3]]),
        ([(F32, 2), (F32, 2)], 12, [[0, 1]]),  # above the size with the last one
        ([(F32, 1), (F16, 2), (F32, 1), (F16, 2)], 8, [[0, 2], [1, 3]]),
        ([(F16, 1), (F64, 1), (F32, 1), (F16, 1)], 16, [[0, 3], [1], [2]]),
        ([(F32, 0), (F32, 0), (F32, 2)], 8, [[2], [0, 1]]),
        ([(F32, 0), (F32, 1)], 0, [[0], [1]]),
    ],
    ids=str,
)
def test_what_shares_a_message(tensors: list[tuple[str, int]], size: float, expected: list[list[int]]) -> None:
    assert buckets([tf.zeros([count], dtype) for dtype, count in tensors], size) == expected


class Alike(Collectives):
    """The collectives of two ranks that always have the same."""

    size = 2

    def __init__(self) -> None:
        self.names: list[str] = []

    def sum(self, tensor: Any, name: str) -> Any:
        return 2 * tensor

    def sum_group(self, tensors: Sequence[Any], name: str, *, on_host: bool = False) -> list[Any]:
        assert len({tensor.dtype for tensor in tensors}) == 1
        self.names.append(name)
        return [2 * tensor for tensor in tensors]


def test_sums_are_in_the_order_of_the_tensors() -> None:
    collectives = Alike()
    tensors = [tf.fill([index + 1], tf.cast(index, dtype)) for index, dtype in enumerate([F32, F16, F32, F64, F16])]
    sums = sum_in_buckets(tensors, "x", 12, collectives.sum_group)
    for tensor, found in zip(tensors, sums):
        assert found.dtype == tensor.dtype
        np.testing.assert_array_equal(found, 2 * tensor)
    assert collectives.names == ["x.0", "x.1", "x.2", "x.3"]


class Two(World):
    """The first of two ranks."""

    size = 2

    def __init__(self, collectives: Collectives) -> None:
        super().__init__()
        self.collectives = collectives


#: In the order of the forward pass; the order of their names is another one.
LAYERS = ["z", "b", "y", "a"]
SETTINGS: dict[str, Any] = {
    "extern_data": {"data": {"dim": 6, "sparse": True}, "classes": {"dim": 3, "sparse": True}},
    "optimizer": {"class": "adam"},
    "gradient_clip_global_norm": 0.1,
    "learning_rate": 0.01,
}


def layers(first: str = "data", **more: Any) -> dict[str, Any]:
    """Return a chain of layers, the first of which looks up rows by labels."""
    network: dict[str, Any] = dict(more)
    source = first
    for name in LAYERS:
        network[name] = {"class": "linear", "activation": "tanh", "n_out": 4, "from": source}
        source = name
    return {**network, "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": source}}


def trainer_of(world: World, network: Any = None, **more: Any) -> StepTrainer:
    config = Config({**SETTINGS, "network": network or layers(), **more})
    return StepTrainer(Network.from_config(config, train=True), config, world)


def of_bytes(number: float) -> dict[str, Any]:
    return {"bucket_size": number / MEGABYTE}


def order_of_gradients(**settings: Any) -> list[str]:
    """Return the parameters in the order in which their gradients are computed, last layer first."""
    trainer = trainer_of(World(), **settings)
    found: list[str] = []
    gradients = trainer.updater.gradients

    def recording(*args: Any) -> Any:
        grads = gradients(*args)
        found.extend(grads.raw)
        return grads

    trainer.updater.gradients = recording  # type: ignore[method-assign]
    trainer.function.graph(trainer.tensors(random_feed(trainer.net.extern_data)))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mixed_precision": "float16"},  # scaled: divided by the scale afterwards
        {"debug_add_check_numerics_ops": True},
        {"maximize_grad_norm": 0.1},
        {"accum_grad_multiple_step": 2},
    ],
    ids=str,
)
def test_gradients_come_in_the_order_of_the_backward_pass(settings: dict[str, Any]) -> None:
    of_layers = [name.rpartition("/")[0] for name in order_of_gradients(**settings)]
    assert list(dict.fromkeys(of_layers)) == ["output", *reversed(LAYERS)]
    assert len(of_layers) == 2 * len(set(of_layers))


def test_shared_parameters_come_when_all_of_their_layers_are_done() -> None:
    network = layers()
    network["a"]["reuse_params"] = "b"
    of_layers = [name.rpartition("/")[0] for name in order_of_gradients(network=network)]
    assert list(dict.fromkeys(of_layers)) == ["output", "y", "b", "z"]


HASHED = """
from tests.engine.test_buckets import BRANCHES, order_of_gradients
print(order_of_gradients(network=BRANCHES))
"""
_UNIT = {"out": {"class": "linear", "activation": "tanh", "n_out": 4, "from": ["prev:out", "data:source"]}}
_OUT = {**_UNIT, "output": {"class": "copy", "from": "out"}}
BRANCHES: dict[str, Any] = {
    **layers("data"),
    "left": {"class": "rec", "unit": _OUT, "from": "z"},
    "right": {"class": "rec", "unit": "lstmp", "n_out": 4, "from": "z"},
    "heads": {"class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": 4, "from": "b"},
    "b": {"class": "combine", "kind": "add", "from": ["left", "right"]},
    "y": {"class": "linear", "activation": None, "n_out": 4, "from": ["heads", "right"]},
    "a": {"class": "batch_norm", "masked_time": True, "from": "y"},
}


@pytest.mark.slow
def test_the_order_is_the_same_in_each_process() -> None:
    """Ranks are processes, in each of which strings hash differently."""
    found = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and "left/rec/out" in found.pop()


def ancestors(op: Any) -> set[Any]:
    """Return all ops for which an op waits."""
    seen, remaining = set(), [op]
    while remaining:
        op = remaining.pop()
        if op not in seen:
            seen.add(op)
            remaining += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return seen


@pytest.mark.parametrize("options", [{}, {"compression": "fp16"}, {"average_gradients": True}], ids=str)
@pytest.mark.parametrize("size", [0, 64])
def test_a_message_waits_for_its_own_gradients_only(options: dict[str, Any], size: int) -> None:
    """And for the messages before it, in the same order on all ranks. None is sent before the first is there."""
    collectives = TensorFlowCollectives(Membership(0, 2, 0, 1, ("a:1", "b:1"), "a test", "token"), RING)
    trainer = trainer_of(Two(collectives), distributed={**options, **of_bytes(size)})
    sent: list[tuple[list[Any], Any]] = []
    sum_group = collectives.sum_group

    def recording(tensors: Sequence[Any], name: str, **kwargs: Any) -> list[Any]:
        sums = sum_group(tensors, name, **kwargs)
        sent.append(([tensor.op for tensor in tensors], sums[0].op))
        return sums

    collectives.sum_group = recording  # type: ignore[method-assign]
    trainer.function.graph(trainer.tensors(random_feed(trainer.net.extern_data)))
    assert len(sent) == (10 if size == 0 else 3 if options.get("compression") else 6)
    reductions: set[Any] = set()
    for index, (own, result) in enumerate(sent):
        before = ancestors(result)
        assert before.issuperset(own)
        for later, _ in sent[index + 1 :]:
            assert before.isdisjoint(later)
        found = {op for op in before if op.type == "CollectiveReduceV2"}
        assert found > reductions
        reductions = found
    first = {op.inputs[0].op if options.get("compression") else op for op in sent[0][0]}
    for op in reductions:
        assert ancestors(op).issuperset(first)


@pytest.mark.parametrize(
    "options", [of_bytes(0), of_bytes(64), {}, {"average_gradients": True, **of_bytes(64)}], ids=str
)
def test_two_ranks_with_the_same_batch(options: dict[str, Any]) -> None:
    """Are one with the batch twice; where they take the mean, one with the batch."""
    ours, alone = trainer_of(Two(Alike()), distributed=options), trainer_of(World())
    ours.ranks.control.more = True
    for seed in range(3):
        feed = random_feed(ours.net.extern_data, seed=seed)
        twice = {name: np.concatenate([value] * (1 if len(options) > 1 else 2)) for name, value in feed.items()}
        found, expected = ours.step(feed), alone.step(twice)
        np.testing.assert_allclose(found.grad_norm, expected.grad_norm, rtol=1e-5)
    for name, variable in alone.net.stored_params.items():
        np.testing.assert_allclose(ours.net.stored_params[name], variable, rtol=1e-5, atol=1e-6)


@pytest.fixture
def memory() -> Iterator[type[Memory]]:
    """Return the memory of `LIMITED` layers."""
    yield Memory
    Memory.all_fit()


@pytest.mark.parametrize("size,again", [(MEGABYTE, True), (0, False)])
def test_out_of_memory_in_the_backward_pass(
    size: int, again: bool, memory: type[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is done again, in halves, as long as no message is sent."""
    network = layers(tight={**LIMITED, "from": "z"})
    network["b"]["from"] = "tight"
    trainer = trainer_of(Two(Alike()), network, distributed=of_bytes(size))
    trainer.ranks.control.more = True
    calls = []

    def check(x: Any) -> Any:
        calls.append(len(x))
        if len(calls) == 2:  # the first one is that of the forward pass
            raise MemoryError
        return x

    monkeypatch.setattr(little_memory, "check", check)
    feed = random_feed(trainer.net.extern_data, batch=4)
    if again:
        trainer.step(feed)
        assert calls == [4, 4, 2, 2, 2, 2]
    else:
        with pytest.raises(tf.errors.ResourceExhaustedError):
            trainer.step(feed)
        assert "sent already" in trainer.ranks.why_not_again(means=False)
