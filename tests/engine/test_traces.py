"""One trace of a training step for batches of any sizes and lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.step_trainer import StepTrainer

NETWORK: dict[str, Any] = {
    "lstm": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"},
    "out": {"class": "softmax", "from": "lstm", "loss": "ctc", "target": "classes"},
    "frames": {"class": "softmax", "from": "data", "loss": "ce", "target": "words"},
}  # fmt: skip


@pytest.mark.slow
def test_one_trace_for_all_lengths(monkeypatch: Any) -> None:
    """A recurrence, CTC and many labels, on ragged batches of ten shapes."""
    extern = {"data": {"dim": 5}, "classes": {"dim": 4, "sparse": True}, "words": {"dim": 1000, "sparse": True}}
    config = Config({"behavior_version": 21, "extern_data": extern, "network": NETWORK, "learning_rate": 0.1})
    net = Network.from_config(config, train=True)
    lowered: list[bool] = []
    lower = net.lower
    monkeypatch.setattr(
        net, "lower", lambda feed, **options: lowered.append(options["train"]) or lower(feed, **options)
    )
    trainer, evaluator = StepTrainer(net, config), Evaluator(net, config)
    rng = np.random.RandomState(1)
    shapes = set()
    for _ in range(10):
        lengths = rng.randint(6, 30, rng.randint(1, 5)).astype("int32")
        shape = len(lengths), lengths.max()
        shapes.add(shape)
        feed = {
            "data": rng.normal(size=(*shape, 5)).astype("float32"), "data/size0": lengths,
            "words": rng.randint(0, 1000, shape).astype("int32"), "words/size0": lengths,
            "classes": rng.randint(0, 4, (len(lengths), 2)).astype("int32"),
            "classes/size0": np.full(len(lengths), 2, "int32"),
        }  # fmt: skip
        assert trainer.step(feed).finite and evaluator.step(feed).finite
    assert len(shapes) > 5
    assert lowered == [True, False]
