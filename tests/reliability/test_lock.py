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
from typing import Any, Callable

import pytest

from returnn_tf.config import ConfigError
from returnn_tf.engine.checkpoints import lock as model_lock
from returnn_tf.engine.checkpoints.lock import ModelLock
from tests.reliability import toy
from tests.waiting import LONG, until

pytestmark = pytest.mark.slow  # each starts processes

PATIENCE = 0.4


class Clock:
    """Stands for the module time of the lock: time passes only while it sleeps, so that no load ends its patience.

    :param beat: called once a second
    """

    def __init__(self, beat: Callable[[], None]) -> None:
        self.now, self.beat = 0.0, beat
        self.strftime = time.strftime

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(int(self.now + seconds) - int(self.now)):
            self.beat()
        self.now += seconds


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a faster heartbeat than that of a real run."""
    monkeypatch.setattr(model_lock, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(model_lock, "PATIENCE_SECONDS", PATIENCE)


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
def test_on_another_host_what_is_touched_lives_whatever_its_clock_says(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    write_lock(tmp_path)
    now = [time.time() + skew]

    def beat() -> None:
        now[0] += 1.0
        os.utime(str(lock_file(tmp_path)), (now[0], now[0]))

    monkeypatch.setattr(model_lock, "PATIENCE_SECONDS", 2.5)
    monkeypatch.setattr(model_lock, "time", Clock(beat))
    with pytest.raises(ConfigError, match="process 77 on host elsewhere since yesterday"):
        ModelLock(str(tmp_path / "net")).acquire()
    monkeypatch.setattr(model_lock, "time", Clock(lambda: None))
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
    assert time.monotonic() - start > PATIENCE
    lock.release()


def test_who_was_silent_for_too_long_notices_that_the_lock_has_gone(tmp_path: pathlib.Path) -> None:
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()
    lock.check()
    write_lock(tmp_path)
    with pytest.raises(ConfigError, match="process 77 on host elsewhere"):
        until(lock.check, "the beat has not noticed it")
    lock.release()
    assert json.loads(lock_file(tmp_path).read_text())["pid"] == 77  # it stays theirs


def test_a_deleted_lock_is_made_anew_and_damaged_ones_count_as_none(tmp_path: pathlib.Path) -> None:
    lock_file(tmp_path).write_text("{")
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()
    lock_file(tmp_path).unlink()
    until(lock_file(tmp_path).exists, "the beat has not made it")
    lock.check()
    lock.release()
    assert os.listdir(str(tmp_path)) == []


def test_a_beat_on_a_slow_disk_does_not_make_a_released_lock_anew(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have looked for the file before the release and find none afterwards."""
    beating, go, content = threading.Event(), threading.Event(), model_lock._content

    def slow(path: str) -> Any:
        if threading.current_thread().name == "lock":
            beating.set()
            go.wait(0.5)  # a disk that stalls
        return content(path)

    monkeypatch.setattr(model_lock, "_content", slow)
    lock = ModelLock(str(tmp_path / "net"))
    others = threading.enumerate()
    lock.acquire()
    (beats,) = [thread for thread in threading.enumerate() if thread.name == "lock" and thread not in others]
    assert beating.wait(LONG)
    lock.release()
    go.set()
    beats.join(LONG)
    assert not beats.is_alive() and os.listdir(str(tmp_path)) == []


@pytest.mark.parametrize("lives", [True, False], ids=["slow", "dead"])
def test_who_takes_over_may_be_slow_but_not_dead(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """Its guard stays while it works, although others have already watched the dead lock for as long as they can."""
    write_lock(tmp_path)
    guard = tmp_path / ".net.lock.guard"
    guard.mkdir()
    clock = Clock(lambda: None)

    def at_work() -> None:
        if lives and clock.now > 12.0:  # 10 s after the first look at the lock, and 2 s at the guard
            lock_file(tmp_path).unlink(missing_ok=True)
            guard.rmdir()

    clock.beat = at_work
    monkeypatch.setattr(model_lock, "PATIENCE_SECONDS", 10.0)
    monkeypatch.setattr(model_lock, "time", clock)
    lock = ModelLock(str(tmp_path / "net"))
    lock.acquire()
    assert json.loads(lock_file(tmp_path).read_text())["pid"] == os.getpid() and not guard.exists()
    assert (clock.now < 15.0) == lives
    lock.release()


def test_a_guard_removed_by_others_is_no_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after this process was stopped for a while."""
    write_lock(tmp_path, host=socket.gethostname(), boot=model_lock._machine()["boot"], pid=2**22 + 1)
    remove = os.remove

    def removed(path: str) -> None:
        remove(path)
        if path == str(lock_file(tmp_path)):
            (tmp_path / ".net.lock.guard").rmdir()

    with monkeypatch.context() as patch:
        patch.setattr(os, "remove", removed)
        lock = ModelLock(str(tmp_path / "net"))
        lock.acquire()
    assert json.loads(lock_file(tmp_path).read_text())["pid"] == os.getpid()
    lock.release()


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
    toy.write_config(tmp_path, num_epochs=10000)
    first = warm.start(tmp_path)
    toy.wait_for_text(warm, first, tmp_path, "Saved net/toy.001")
    assert warm.run(tmp_path, task="eval", load_epoch=1) == 0, toy.text_of(tmp_path)
    assert warm.run(tmp_path) == 2
    assert "is being trained by process %d on host %s" % (first, socket.gethostname()) in toy.text_of(tmp_path)
    os.kill(first, signal.SIGTERM)
    assert warm.wait(first) == 143, toy.text_of(tmp_path)
    assert not (tmp_path / "net/.toy.lock").exists()
