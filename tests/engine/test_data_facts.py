"""Data that is another one under the same settings."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.datasets import Dataset, HDFWriter
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.saver import Background
from returnn_tf.engine.support import atomic_files as checkpoint_files
from returnn_tf.engine.support.data_facts import data_facts
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.training.engine import Engine

LENGTHS = [3, 5, 4, 2]
NAMES = ["a", "b", "c", "d"]


def write(path: pathlib.Path, lengths: list[int], names: list[str], dim: int = 2) -> str:
    """Return an HDF file, perhaps in place of another one; its name."""
    if path.exists():
        path.unlink()
    with HDFWriter(str(path), dim=dim) as writer:
        for length, name in zip(lengths, names):
            writer.insert_batch(np.ones((1, length, dim), "float32"), {0: np.array([length], "int32")}, [name])
    return str(path)


def facts(path: str, epoch: int = 2, **options: Any) -> dict[str, str]:
    return data_facts(Dataset.from_config({"class": "HDFDataset", "files": [path], **options}), epoch)


@pytest.mark.parametrize(
    "lengths, names, dim, changed",
    [
        (LENGTHS + [1], NAMES + ["e"], 2, {"sequences", "order of epoch 2", "lengths", "tags"}),
        (LENGTHS, ["a", "b", "d", "c"], 2, {"tags"}),
        ([3, 5, 4, 3], NAMES, 2, {"lengths"}),
        (LENGTHS, NAMES, 3, {"dims of data"}),
    ],
)
def test_what_differs_is_seen_without_reading_the_data(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, lengths: Any, names: Any, dim: int, changed: Any
) -> None:
    before, after = write(tmp_path / "one", LENGTHS, NAMES), write(tmp_path / "two", lengths, names, dim)
    monkeypatch.setattr("returnn_tf.datasets.hdf.dataset.HDFDataset.read", None)
    one, two = facts(before), facts(after)
    assert {key for key in {**one, **two} if one.get(key) != two.get(key)} == changed
    assert facts(before) == one


def test_order_and_endless_data(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "one", LENGTHS, NAMES)
    one, two = facts(path, seq_ordering="default"), facts(path, seq_ordering="reverse")
    assert {key for key in one if one[key] != two[key]} == {"order of epoch 2", "tags"}
    endless = data_facts(Dataset.from_config({"class": "Task12AXDataset"}), 1)
    assert endless == {"sequences": "None", "dims of data": "9 x 2", "dims of classes": "2 x 1"}


def options(folder: pathlib.Path) -> dict[str, Any]:
    return {
        "train": {"class": "HDFDataset", "files": [str(folder / "train.hdf")], "seq_ordering": "random"},
        "extern_data": {"data": {"dim": 2}},
        "network": {"output": {"class": "linear", "activation": None, "n_out": 2, "from": "data", "loss": "as_is"}},
        "batch_size": 5,
        "learning_rate": 0.01,
        "model": str(folder / "net"),
        "num_epochs": 1,
        "tf_log_dir": None,
        "device": "cpu",
    }


def stopped(folder: pathlib.Path) -> None:
    """Run a training that a signal ends after its next step."""
    stop = StopRequest()
    stop.signum = 15
    with pytest.raises(Stopped), Engine(Config(options(folder)), stop) as engine:
        engine.train()


@pytest.mark.slow
def test_going_on_within_an_epoch_with_other_data_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.hdf"
    write(path, LENGTHS, NAMES)
    stopped(tmp_path)
    write(path, LENGTHS + [1], NAMES + ["e"])
    with pytest.raises(ConfigError) as info:
        Engine(Config(options(tmp_path)))
    text = str(info.value)
    assert "net.001.step1 was saved in the middle of epoch 1, after 1 batches" in text
    changed = "lengths, order of epoch 1, sequences (was 4, is 5), tags. Undo the change; or, "
    assert "the training data has changed, though its settings have not: " + changed in text
    assert "delete the files %s.001.step*" % (tmp_path / "net") in text
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    write(path, LENGTHS, NAMES)
    path.rename(moved / "train.hdf")  # the same data
    changes = {"train": options(moved)["train"]}
    with Engine(Config({**options(tmp_path), **changes})) as engine:
        engine.train()
    assert checkpoint.validate(str(tmp_path / "net.001")) is None


@pytest.mark.slow
def test_a_manifest_of_an_earlier_version_is_taken_as_it_is(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "train.hdf", LENGTHS, NAMES)
    stopped(tmp_path)
    path = tmp_path / "net.001.step1.manifest.json"
    manifest = checkpoint_files.read_manifest(str(path))
    assert manifest is not None and manifest["progress"].pop("facts")
    path.write_text(json.dumps(checkpoint_files.with_checksum(manifest)))
    with Engine(Config(options(tmp_path))) as engine:
        engine.train()
    assert checkpoint.validate(str(tmp_path / "net.001")) is None


@pytest.mark.slow
def test_the_order_of_an_epoch_is_computed_once_for_all_its_checkpoints(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "train.hdf", LENGTHS, NAMES)
    epochs = []

    def counted(dataset: Any, epoch: int) -> dict[str, str]:
        epochs.append(epoch)
        return data_facts(dataset, epoch)

    monkeypatch.setattr("returnn_tf.engine.data.training_data.data_facts", counted)
    monkeypatch.setattr(Background, "busy", False)  # else a checkpoint that is being written puts off the next one
    with Engine(Config({**options(tmp_path), "num_epochs": 2, "save_every_steps": 1})) as engine:
        engine.train()
    assert epochs == [1, 2]
