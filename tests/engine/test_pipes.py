"""A named pipe in place of a file of a training: an error at once, since to open it would wait for ever."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import Config, DataError
from returnn_tf.datasets.audio.audio_range import duration, read_range
from returnn_tf.engine.checkpoints import averaging, checkpoint, model_dir, preload
from returnn_tf.engine.checkpoints.lock import ModelLock
from returnn_tf.engine.checkpoints.restoring import CheckpointManifest
from returnn_tf.engine.data import batch_table
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.monitoring import reproducer, run_settings
from returnn_tf.export.side_file import read_side_file
from tests.waiting import LONG


@pytest.fixture(autouse=True)
def in_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in a folder with a checkpoint; a test that waits fails."""
    monkeypatch.chdir(tmp_path)
    checkpoint.save("m.002", {"W": np.zeros(3, "float32")}, {"s": np.zeros(1)}, checkpoint.CheckpointInfo(2, 5, 1))

    def late(*_: Any) -> None:
        raise TimeoutError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(int(LONG))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _choose() -> None:
    config = Config({"model": "m", "load_epoch": 2})
    CheckpointManifest(config, model_dir.choose_intact(config, lambda *args: None))


def _preload() -> None:
    preload.load(Config({"preload_from_files": {"a": {"filename": "m.002"}}}), {"W": None})


def _read() -> None:
    checkpoint.read("m.002")


READERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "manifest": ("m.002.manifest.json", _choose),
    "index": ("m.002.index", _choose),
    "data": ("m.002.data-00000-of-00001", _choose),
    "state": ("m.002.state.index", _choose),
    "preload index": ("m.002.index", _preload),
    "preload data": ("m.002.data-00000-of-00001", _preload),
    "read index": ("m.002.index", _read),
    "read data": ("m.002.data-00000-of-00001", _read),
    "read another part": ("m.002.data-00001-of-00002", _read),
    "read state": ("m.002.state.index", lambda: checkpoint.read_state("m.002")),
    "average": ("checkpoint", lambda: averaging.last_of_folder("m.", 1)),
    "rates": ("rates", lambda: read_file("rates")),
    "settings": (".m.settings.json", lambda: run_settings.read(".m.settings.json")),
    "batches": (".m.batches.json", lambda: batch_table.read(".m.batches.json")),
    "failed step": ("failure.json", lambda: reproducer.load(".")),
    "side file": ("model.json", lambda: read_side_file(".")),
    "segment of audio": ("a.wav", lambda: read_range("a.wav", 0.5, 1.0)),
    "duration of audio": ("a.wav", lambda: duration("a.wav", name="a")),
}


def _put(name: str) -> None:
    if os.path.exists(name):
        os.remove(name)
    os.mkfifo(name)


@pytest.mark.parametrize("name", READERS)
def test_readers(name: str) -> None:
    path, read = READERS[name]
    _put(path)
    with pytest.raises(DataError, match="it is a pipe or a device"):
        read()


def test_status_tells_it(capsys: Any) -> None:
    _put(".m.status.json")
    assert main(["status", "m"]) == 0
    assert "problem: .m.status.json can't be read: it is a pipe or a device" in capsys.readouterr().out


def test_a_lock_that_is_a_pipe_is_none() -> None:
    _put(".m.lock")
    lock = ModelLock("m")
    lock.acquire()
    lock.release()
    assert not os.path.exists(".m.lock")
