"""Checkpoints of a training: written beside it, the bad passed over, always enough of them."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.engine.passes.progress import PassState, Progress
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support import atomic_files as checkpoint_files
from returnn_tf.engine.training.engine import Engine
from tests.reliability import toy
from tests.waiting import LONG, until

pytestmark = pytest.mark.slow  # each starts processes

OPTIONS: dict[str, Any] = {
    "network": {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}},
    "extern_data": {"data": {"dim": 3}, "classes": {"dim": 2, "sparse": True}},
    "optimizer": {"class": "adam"},
}
FEED = {
    "data": np.ones((1, 4, 3), "float32"),
    "data/size0": np.array([4], "int32"),
    "classes": np.zeros((1, 4), "int32"),
    "classes/size0": np.array([4], "int32"),
}
RATES = {1: EpochData(0.1)}


class Training:
    """A trainer with a saver in a folder."""

    def __init__(self, folder: pathlib.Path, **options: Any) -> None:
        self.model = str(folder / "net")
        self.config = Config({**OPTIONS, "model": self.model, **options})
        self.trainer = StepTrainer(Network.from_config(self.config, train=True), self.config)
        self.saver = Saver(self.config)

    def step(self) -> int:
        """Do one update; return how many there were."""
        self.trainer.step(FEED, 0.1)
        return self.trainer.step_count

    def save_within(self, epoch: int = 1) -> None:
        """Save a checkpoint from within an epoch."""
        self.saver.save_within(self.trainer, Progress(epoch, 0, PassState(self.trainer.step_count)), RATES)

    def stored(self) -> list[str]:
        """Return the names of all checkpoints."""
        found = [*find_step_checkpoints(self.model).values(), *find_checkpoints(self.model).values()]
        return sorted(os.path.basename(path) for path in found)


@pytest.fixture
def training(tmp_path: pathlib.Path) -> Iterator[Training]:
    """Yield a training without options."""
    made = Training(tmp_path)
    yield made
    made.saver.close()


class Held:
    """Writing waits here until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.running, self.most = threading.Event(), 0, 0
        original = checkpoint_files.describe

        def describe(*args: Any) -> Any:
            self.running += 1
            self.most = max(self.most, self.running)
            assert self.go.wait(LONG)
            self.running -= 1
            return original(*args)

        monkeypatch.setattr(checkpoint_files, "describe", describe)


@pytest.fixture
def held(training: Training, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Hold the writing of checkpoints until the end of the test, if that does not let it go."""
    made = Held(monkeypatch)
    yield made
    made.go.set()


def test_training_goes_on_while_its_state_is_written(training: Training, held: Held) -> None:
    """Written is the state at the time of the snapshot; the next one waits, so that never two are written at once."""
    training.step()
    then = {name: var.numpy() for name, var in {**training.trainer.net.params, **training.trainer.state()}.items()}
    training.save_within()
    for _ in range(5):
        training.step()
    until(lambda: held.running)
    assert training.stored() == []
    assert any((var.numpy() != then[name]).any() for name, var in training.trainer.net.params.items())
    waiting = threading.Thread(target=training.save_within)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and held.most == 1
    held.go.set()
    waiting.join()
    training.saver.wait()
    assert training.stored() == ["net.001.step1", "net.001.step6"] and held.most == 1
    prefix = training.model + ".001.step1"
    values = {**checkpoint.read(prefix), **checkpoint.read_state(prefix)}
    assert values.pop(checkpoint.GLOBAL_STEP) == 1 and sorted(values) == sorted(then)
    for name, value in then.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_what_goes_wrong_beside_the_training_ends_it(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise OSError(13, "Permission denied")

    training.step()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "describe", fails)
        training.save_within()
        with pytest.raises(DataError, match="net.001.step1 can't be written: .*Permission denied"):
            until(training.saver.check, "it has not ended")
    training.saver.check()
    assert training.stored() == []


def test_of_the_checkpoints_within_an_epoch_two_stay(training: Training) -> None:
    names = []
    for epoch in (1, 1, 1, 2):
        for _ in range(2):
            training.step()
        training.save_within(epoch)
        training.saver.wait()
        names.append(training.stored())
    training.saver.save(training.trainer, 2, RATES)
    training.saver.wait()
    names.append(training.stored())
    assert names == [
        ["net.001.step2"],
        ["net.001.step2", "net.001.step4"],
        ["net.001.step4", "net.001.step6"],
        ["net.001.step6", "net.002.step8"],
        ["net.002", "net.002.step8"],
    ]
    training.saver.finish()
    assert training.stored() == ["net.002", "net.002.step8"]
    training.step()
    training.save_within(4)  # a run with more epochs was begun
    training.saver.save(training.trainer, 3, RATES)
    training.saver.finish()
    assert training.stored() == ["net.002", "net.003", "net.004.step9"]


def test_nothing_is_deleted_before_the_new_one_has_proven_whole(
    training: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        training.step()
        if number == 2:
            training.saver.wait()  # else the second one, too, may be damaged
            monkeypatch.setattr(checkpoint_files, "publish", damaged(checkpoint_files.publish))
        training.save_within()
    training.saver.wait()
    assert training.stored() == ["net.001.step1", "net.001.step2", "net.001.step3"]
    assert "step3 is damaged (the checksum of " in capsys.readouterr().out


def test_an_old_one_that_cannot_be_deleted_is_told_once_and_does_not_end_the_training(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path, cleanup_old_models={"keep_last_n": 1, "keep_best_n": 0, "keep": []})
    held, remove = ("net.001.step1.manifest.json", "net.001.manifest.json"), os.remove

    def not_all(path: str) -> None:
        if os.path.basename(path) in held and os.path.exists(path):
            raise PermissionError(13, "Permission denied", path)
        remove(path)

    monkeypatch.setattr(os, "remove", not_all)
    for _ in range(4):
        training.step()
        training.save_within()
        training.saver.wait()
    assert training.stored() == ["net.001.step1", "net.001.step3", "net.001.step4"]
    for epoch in range(1, 5):
        training.saver.save(training.trainer, epoch, RATES)
        training.saver.clean_up(RATES, epoch)
        training.saver.wait()
    training.saver.finish()
    training.saver.close()
    assert training.stored() == ["net.001", "net.001.step1", "net.003", "net.004"]
    assert checkpoint.validate(training.model + ".001") is None
    text = capsys.readouterr().out
    for name in ("net.001.step1", "net.001"):
        path = "%s.manifest.json" % (tmp_path / name)
        told = "The old checkpoint %s stays: %s can't be deleted (Permission denied)" % (tmp_path / name, path)
        assert text.count(told) == 1
    assert "Deleted the checkpoints of epochs 2:" in text and "of epochs 1" not in text


def damaged(publish: Any) -> Any:
    """Damage what is on the disk."""

    def publish_damaged(source: str, folder: str, names: list[str]) -> None:
        path = os.path.join(source, names[0])
        with open(path, "r+b") as file:
            byte = file.read(1)
            file.seek(0)
            file.write(bytes([byte[0] ^ 1]))
        publish(source, folder, names)

    return publish_damaged


def test_when_a_checkpoint_is_due(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path / "steps", save_every_steps=3)
    assert [step for step in range(1, 8) if training.saver.due(step)] == [3, 4, 5, 6, 7]  # until it is written
    training.step()
    training.save_within()
    assert not training.saver.due(4)
    training.saver.close()
    timed, now = Training(tmp_path / "minutes", save_every_minutes=0.5), time.monotonic()
    monkeypatch.setattr(timed.saver, "_last_time", now)
    for seconds, due in ((29.0, False), (31.0, True)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda after=seconds: now + after)
            assert timed.saver.due(1) == due
    timed.saver.close()
    for key in ("save_every_steps", "save_every_minutes"):
        with pytest.raises(ConfigError, match="%s.*must be at least 0" % key):
            Saver(Config({**OPTIONS, "model": training.model, key: -1}))


def test_one_is_written_too_while_this_process_has_no_batch_and_the_others_train(training: Training) -> None:
    """Each process counts its own updates where the mean of the parameters is taken."""

    def save(epoch: int, first_step: int, steps: int) -> None:
        training.saver.save_within(training.trainer, Progress(epoch, first_step, PassState(steps)), RATES)
        training.saver.wait()

    for _ in range(3):
        training.step()
    save(1, 0, 3)
    changed = training.trainer.net.params["output/b"] + 1.0  # the mean, when others have trained
    training.trainer.net.params["output/b"].assign(changed)
    save(1, 0, 4)
    assert training.stored() == ["net.001.step3", "net.001.step4"]
    newest = training.model + ".001.step4"
    np.testing.assert_array_equal(checkpoint.read(newest)["output/b"], changed.numpy())
    made = checkpoint.info(newest)
    assert made is not None and made.progress is not None and (made.step, made.progress["passed"]["steps"]) == (3, 4)
    os.remove(newest + ".manifest.json")
    save(1, 0, 4)  # there is one of this step
    assert not os.path.exists(newest + ".manifest.json")
    training.saver.save(training.trainer, 1, RATES)
    training.saver.wait()
    save(2, 3, 1)  # this process has no batch in the next epoch at all
    assert training.stored() == ["net.001", "net.002.step4"]


def test_a_damaged_newest_one_is_passed_over_and_the_one_before_taken(
    warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    toy.write_config(tmp_path, save_every_steps=7, fault=("saving", 5, "SIGKILL"))
    assert warm.run(tmp_path) == -9
    newest = max(find_step_checkpoints(str(tmp_path / "net/toy")))
    assert newest == (1, 28)
    path = tmp_path / ("net/toy.%03d.step%d.state.data-00000-of-00001" % newest)
    path.write_bytes(path.read_bytes()[:-100])
    toy.write_config(tmp_path, save_every_steps=7)
    assert warm.run(tmp_path) == 0, toy.text_of(tmp_path)
    text = toy.text_of(tmp_path)
    assert "The checkpoint net/toy.%03d.step%d is skipped: " % newest in text and "The previous one is used." in text
    assert "Resuming within epoch" in text
    toy.assert_same_end(tmp_path, undisturbed)


def test_a_checkpoint_within_an_epoch_is_nothing_without_its_position(tmp_path: pathlib.Path) -> None:
    prefix = str(tmp_path / "net.001.step5")
    checkpoint.save(prefix, {"output/W": np.zeros(3)}, {}, checkpoint.CheckpointInfo(1, 5, 42))
    data = {"class": "Task12AXDataset", "num_seqs": 2}
    with pytest.raises(DataError, match="net.001.step5 was written mid-epoch, but .* position is missing"):
        Engine(Config({**OPTIONS, "model": str(tmp_path / "net"), "train": data}))
