"""What the tasks make of checkpoints from within an epoch, when these are the only ones or in the way."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any, Dict

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.datasets import Dataset
from returnn_tf.engine.engine import Engine
from returnn_tf.engine.model_selection import find_step_checkpoints
from returnn_tf.engine.signals import Stopped, StopRequest
from returnn_tf.tasks.registry import run_task

DATA = {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 1}
OPTIONS: Dict[str, Any] = {
    "train": {"class": "Task12AXDataset", "num_seqs": 12},
    "dev": DATA,
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}},
    "batch_size": 300,
    "max_seqs": 5,
    "learning_rate": 0.02,
    "model": "net/toy",
    "num_epochs": 2,
    "tf_log_dir": None,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(**changes: Any) -> int:
    return run_task(Config({**OPTIONS, **changes}))


def stopped(**changes: Any) -> None:
    """A training which a signal ends after its next step."""
    stop = StopRequest()
    stop.signum = signal.SIGTERM
    with pytest.raises(Stopped, match="within the epoch; its state is saved"):
        with Engine(Config({**OPTIONS, **changes}), stop) as engine:
            engine.train()


def test_tasks_which_find_no_other_say_how_to_load_one(capsys: pytest.CaptureFixture[str]) -> None:
    stopped()
    assert sorted(find_step_checkpoints("net/toy")) == [(1, 1)]
    tasks = [{"task": "eval"}, {"task": "forward", "forward_data": "dev", "output_file": "out.hdf"}]
    for task in tasks:
        with pytest.raises(ConfigError) as info:
            run(**task)
        assert "no file net/toy.<epoch>.index. There is one from within an epoch" in str(info.value)
        assert str(info.value).endswith("set load = 'net/toy.001.step1'.")
        with pytest.raises(ConfigError) as info:
            run(**task, load_epoch=1)
        assert str(info.value).endswith("by its name, without load_epoch: load = 'net/toy.001.step1'")
    stopped()
    for task in tasks:
        with pytest.raises(ConfigError, match=r"There are 2 from within .* newest one set load = 'net/toy.001.step2'"):
            run(**task)
        assert run(**task, load="net/toy.001.step2") == 0  # as the message says
        assert "Loaded net/toy.001.step2\n" in capsys.readouterr().out
    written = {seq.tag: seq.data["data"] for seq in Dataset.from_config("out.hdf").sequences()}
    assert sorted(written) == sorted(seq.tag for seq in Dataset.from_config(DATA).sequences())
    np.testing.assert_allclose(next(iter(written.values())).sum(axis=1), 1.0, rtol=1e-5)
    os.remove("net/toy.001.step2.manifest.json")
    with pytest.raises(ConfigError, match="set load = 'net/toy.001.step1'"):  # the other one is not written to the end
        run(task="eval")
