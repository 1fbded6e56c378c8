"""A run that goes on within an epoch trains on the same data, though what was before is not read again."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.training.engine import Engine


def _noisy(data: Any, *, rng: np.random.RandomState, **_: Any) -> Any:
    value = data["data"].raw_tensor
    data["data"].raw_tensor = (value + 0.1 * rng.normal(size=value.shape)).astype("float32")
    return data


def _train(config: dict[str, Any]) -> dict[str, Any]:
    """Train all epochs; the parameters of the last one."""
    with Engine(Config(config)) as engine:
        engine.train()
    return checkpoint.read(find_checkpoints(config["model"])[config["num_epochs"]])


@pytest.mark.slow
def test_chunks_and_random_numbers_go_on(tmp_path: pathlib.Path) -> None:
    """Sizes of chunks, those that are dropped, and the numbers of a function of sequences: the weights are equal."""
    inner = {"class": "Task12AXDataset", "num_seqs": 40, "seq_ordering": "random"}
    config = {
        "model": str(tmp_path / "net"),
        "train": {"class": "PostprocessingDataset", "dataset": inner, "map_seq": _noisy},
        "dev": {**inner, "num_seqs": 2},
        "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
        "network": {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}},
        "chunking": "20:10",
        "chunking_variance": 0.4,
        "seq_drop": 0.2,
        "batch_size": 200,
        "max_seqs": 3,
        "num_epochs": 1,
        "learning_rate": 0.1,
        "save_every_steps": 10,
        "behavior_version": 21,
    }
    undisturbed = _train(config)
    steps = find_step_checkpoints(config["model"])
    info = checkpoint.info(list(steps.values())[-1])
    assert info is not None and info.progress is not None
    assert set(info.progress["passed"]["resume"]) == {"plan", "epoch"}
    checkpoint.delete(find_checkpoints(config["model"])[1])
    resumed = _train(config)
    assert set(resumed) == set(undisturbed)
    for name, value in undisturbed.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
