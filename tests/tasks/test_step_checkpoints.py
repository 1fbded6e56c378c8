"""What the tasks make of checkpoints from within an epoch, when these are the only ones or in the way."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.datasets import Dataset
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.training.engine import Engine
from tests.run_tasks import run_task

DATA = {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 1}
OPTIONS: dict[str, Any] = {
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


def stopped(**changes: Any) -> str:
    """Run a training that a signal ends after its next step; return its last words."""
    stop = StopRequest()
    stop.signum = signal.SIGTERM
    with pytest.raises(Stopped, match="within the epoch; its state is saved") as info:
        with Engine(Config({**OPTIONS, **changes}), stop) as engine:
            engine.train()
    return str(info.value)


@pytest.mark.slow
def test_tasks_which_find_no_other_say_how_to_load_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped().endswith("is saved. The same command resumes from there.")
    assert sorted(find_step_checkpoints("net/toy")) == [(1, 1)]
    tasks = [{"task": "eval"}, {"task": "forward", "forward_data": "dev", "output_file": "out.hdf"}]
    for task in tasks:
        with pytest.raises(ConfigError) as info:
            run(**task)
        assert "no file net/toy.<epoch>.index. There is one from mid-epoch" in str(info.value)
        assert str(info.value).endswith("set load = 'net/toy.001.step1'.")
        with pytest.raises(ConfigError) as info:
            run(**task, load_epoch=1)
        assert str(info.value).endswith("by its name, without load_epoch: load = 'net/toy.001.step1'")
    stopped()
    for task in tasks:
        with pytest.raises(ConfigError, match=r"There are 2 from mid-epoch.* set load = 'net/toy.001.step2'"):
            run(**task)
        assert run(**task, load="net/toy.001.step2") == 0  # as the message says
        assert "Loaded net/toy.001.step2\n" in capsys.readouterr().out
    written = {seq.tag: seq.data["data"] for seq in Dataset.from_config("out.hdf").sequences()}
    assert sorted(written) == sorted(seq.tag for seq in Dataset.from_config(DATA).sequences())
    np.testing.assert_allclose(next(iter(written.values())).sum(axis=1), 1.0, rtol=1e-5)
    os.remove("net/toy.001.step2.manifest.json")
    with pytest.raises(ConfigError, match="set load = 'net/toy.001.step1'"):  # the other one is not written to the end
        run(task="eval")


@pytest.mark.slow
def test_epochs_are_not_trained_anew_beside_old_ones_from_within_them(capsys: pytest.CaptureFixture[str]) -> None:
    """The next run without start_epoch would go on from the old ones."""
    assert stopped(start_epoch=1).endswith("is saved. Without start_epoch the same command resumes from there.")
    before = sorted(os.listdir("net"))
    with pytest.raises(ConfigError) as info:
        run(start_epoch=1)
    assert "start_epoch': an earlier run has left mid-epoch checkpoints of epochs" in str(info.value)
    assert "Remove start_epoch to resume from the newest now" in str(info.value)
    assert "to train from epoch 1 on, delete or move the files net/toy.001.step*;" in str(info.value)
    assert sorted(os.listdir("net")) == before
    assert run(num_epochs=1) == 0  # without start_epoch, as it says
    assert "Resuming within epoch 1 after 1 batches" in capsys.readouterr().out
    assert sorted(find_step_checkpoints("net/toy")) == [(1, 1)]
    assert run(start_epoch=2) == 0  # that of epoch 1 is in nobody's way
    text = capsys.readouterr().out
    assert "Loaded net/toy.001\n" in text and "start_epoch" not in text


@pytest.mark.slow
def test_old_checkpoints_of_epochs_which_are_trained_anew_are_told_and_do_not_replace_the_new_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(num_epochs=4)
    old = {epoch: pathlib.Path("net/toy.%03i.manifest.json" % epoch).read_text() for epoch in range(1, 5)}
    assert "start_epoch" not in capsys.readouterr().out
    only_last = {"keep_last_n": 1, "keep_best_n": 0, "keep": []}
    run(start_epoch=1, num_epochs=3, cleanup_old_models=only_last, learning_rate=0.1)
    text = capsys.readouterr().out
    assert "start_epoch': an earlier run has left checkpoints of the epochs 1, 2, 3, 4. Each stays until" in text
    assert sorted(find_checkpoints("net/toy")) == [2, 3, 4]  # a clean up keeps two of the new ones
    now = {epoch: pathlib.Path("net/toy.%03i.manifest.json" % epoch).read_text() for epoch in (2, 3, 4)}
    assert now[2] != old[2] and now[3] != old[3] and now[4] == old[4]
