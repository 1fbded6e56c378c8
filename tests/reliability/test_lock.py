"""No two trainings write the same checkpoints: the lock of a model."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.engine.checkpoints import lock as model_lock
from returnn_tf.engine.checkpoints.lock import ModelLock
from tests.reliability import toy


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a faster heartbeat than that of a real run."""
    monkeypatch.setattr(model_lock, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(model_lock, "PATIENCE_SECONDS", 0.4)


def lock_file(folder: pathlib.Path) -> pathlib.Path:
    """Return the lock of the model ``net`` in a folder."""
    return folder / ".net.lock"


def write_lock(folder: pathlib.Path, **facts: Any) -> None:
    """Write a lock as another process would have."""
    content: dict[str, Any] = {"host": "elsewhere", "pid": 77, "since": "yesterday", "token": "x", "boot": None}
    lock_file(folder).write_text(json.dumps({**content, **facts}))


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys, time; from returnn_tf.engine.checkpoints.lock import ModelLock; ModelLock(sys.argv[1]).acquire()"
    )
    code += "; print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "net")], env=toy.environment(), stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        lock = ModelLock(str(tmp_path / "net"))
        with pytest.raises(ConfigError) as info:
            lock.acquire()
        text = str(info.value)
        assert "process %d on host %s" % (holder.pid, socket.gethostname()) in text and "choose another path" in text
        assert "delete %s" % lock_file(tmp_path) in text
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    assert lock_file(tmp_path).exists()  # killed, it could not remove it
    lock.acquire()
    lock.release()
    assert os.listdir(str(tmp_path)) == []


def test_the_lock_comes_before_all_else_in_a_new_folder(tmp_path: pathlib.Path) -> None:
    """Who prepares the folder removes temporary files: not those of a run which was quicker."""
    first, second = (ModelLock(str(tmp_path / "new" / "net")) for _ in range(2))
    first.acquire()  # there is no folder yet
    second.acquire(make_folder=True)
    with pytest.raises(ConfigError, match="is being trained by process"):
        first.acquire(make_folder=True)
    second.release()
    with pytest.raises(ConfigError, match="can't be written"):
        (tmp_path / "file").write_text("")
        ModelLock(str(tmp_path / "file" / "net")).acquire(make_folder=True)


def test_another_process_with_the_number_of_the_dead_one_does_not_count(tmp_path: pathlib.Path) -> None:
    mine = ModelLock(str(tmp_path / "net"))
    mine.acquire()
    content = json.loads(lock_file(tmp_path).read_text())
    mine.release()
    write_lock(tmp_path, **{**content, "born": "12"})
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()
    lock.release()
    write_lock(tmp_path, **content)
    with pytest.raises(ConfigError, match="is being trained"):
        lock.acquire()


@pytest.mark.parametrize("skew", [-1e5, 0.0, 1e5], ids=["late", "same", "early"])
def test_on_another_host_what_is_touched_lives_whatever_its_clock_says(tmp_path: pathlib.Path, skew: float) -> None:
    write_lock(tmp_path)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            now = time.time() + skew
            os.utime(str(lock_file(tmp_path)), (now, now))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(ConfigError, match="process 77 on host elsewhere since yesterday"):
            ModelLock(str(tmp_path / "net")).acquire()
    finally:
        stop.set()
        thread.join()
    os.utime(str(lock_file(tmp_path)), (time.time() + skew,) * 2)
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()  # it is silent now
    assert json.loads(lock_file(tmp_path).read_text())["pid"] == os.getpid()
    lock.release()


def test_the_same_name_on_another_machine_is_another_host(tmp_path: pathlib.Path) -> None:
    """Nobody can tell there by the number whether the process lives."""
    write_lock(tmp_path, host=socket.gethostname(), pid=os.getpid(), boot="another machine")
    start = time.monotonic()
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()
    assert time.monotonic() - start > 0.4
    lock.release()


def test_who_was_silent_for_too_long_notices_that_the_lock_has_gone(tmp_path: pathlib.Path) -> None:
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()
    lock.check()
    write_lock(tmp_path)
    end = time.monotonic() + 20.0
    with pytest.raises(ConfigError, match="process 77 on host elsewhere"):
        while time.monotonic() < end:
            lock.check()
            time.sleep(0.01)
    lock.release()
    assert json.loads(lock_file(tmp_path).read_text())["pid"] == 77  # it stays theirs


def test_a_deleted_lock_is_made_anew_and_damaged_ones_count_as_none(tmp_path: pathlib.Path) -> None:
    lock_file(tmp_path).write_text("{")
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()
    lock_file(tmp_path).unlink()
    end = time.monotonic() + 20.0
    while not lock_file(tmp_path).exists() and time.monotonic() < end:
        time.sleep(0.01)
    lock.check()
    lock.release()
    assert os.listdir(str(tmp_path)) == []


def test_many_at_once_and_one_has_it(tmp_path: pathlib.Path) -> None:
    """All find the lock of a dead process."""
    write_lock(tmp_path, host=socket.gethostname(), boot=model_lock._machine()["boot"], pid=2**22 + 1)
    locks = [ModelLock(str(tmp_path / "net")) for _ in range(8)]
    refused = []

    def acquire(lock: ModelLock) -> None:
        try:
            lock.acquire()
        except ConfigError as exc:
            refused.append(str(exc))

    threads = [threading.Thread(target=acquire, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    for lock in locks:
        lock.release()


def test_two_trainings_of_one_model(warm: toy.Warm, tmp_path: pathlib.Path) -> None:
    """The second one ends with an error that names the first one; looking at its results is not training."""
    toy.write_config(tmp_path, num_epochs=100)
    first = warm.start(tmp_path)
    while "Saved net/toy.001" not in toy.text_of(tmp_path):
        assert warm.poll(first) is None
        time.sleep(0.05)
    assert warm.run(tmp_path, task="eval", load_epoch=1) == 0, toy.text_of(tmp_path)
    assert warm.run(tmp_path) == 2
    assert "is being trained by process %d on host %s" % (first, socket.gethostname()) in toy.text_of(tmp_path)
    os.kill(first, signal.SIGTERM)
    assert warm.wait(first) == 143, toy.text_of(tmp_path)
    assert not (tmp_path / "net/.toy.lock").exists()
