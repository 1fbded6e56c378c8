"""Temporary files and folders beside their target, and locks on files that several processes change."""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Optional

import pytest

from returnn_tf.util import temporary
from returnn_tf.util.temporary import Temporary, exclusive, remove_all
from tests.waiting import LONG

WRITER = """
import os, sys
from returnn_tf.util.temporary import Temporary
made = Temporary(sys.argv[1], folder=sys.argv[2] == "folder", owner=sys.argv[3])
print(made.path, flush=True)
sys.stdin.read()
"""


def writer(target: pathlib.Path, kind: str, owner: str = "") -> subprocess.Popen[bytes]:
    """Return a process that has a temporary file or folder until its input ends."""
    command = [sys.executable, "-c", WRITER, str(target), kind, owner]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline().strip()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LONG)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_only_those_of_dead_processes_are_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str, elsewhere: bool
) -> None:
    """On another machine the process id says nothing; the lock does, which a shared disk knows."""
    process = writer(tmp_path / "out", kind)
    if elsewhere:
        monkeypatch.setattr(temporary, "_machine", lambda: "00000000")
    with Temporary(str(tmp_path / "out")) as mine:
        assert len(os.listdir(tmp_path)) == 2
        end(process)
        assert len(os.listdir(tmp_path)) == 2
        with Temporary(str(tmp_path / "out")) as other:
            assert sorted(os.listdir(tmp_path)) == sorted(os.path.basename(each.path) for each in (mine, other))
    assert os.listdir(tmp_path) == []


def test_others_are_left_alone(tmp_path: pathlib.Path) -> None:
    dead = writer(tmp_path / "out.x", "file", "net")
    end(dead)
    names = ["out", ".out.tmp-", ".out.tmp-12345678-1-xyz", ".out.tmp-1", "out.tmp-12345678-99999999-ab"]
    for name in names:
        (tmp_path / name).touch()
    for target, owner in (("out", ""), ("out.x", ""), ("x", "out"), ("out.x", "other")):
        Temporary(str(tmp_path / target), owner=owner).remove()
    assert len(os.listdir(tmp_path)) == len(names) + 1
    Temporary(str(tmp_path / "out.x"), owner="net").remove()
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_a_file_gets_its_name_at_the_end(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with Temporary(str(tmp_path / "out")) as made:
        made.write(b"new")
        assert (tmp_path / "out").read_bytes() == b"old"
        made.publish()
    assert (tmp_path / "out").read_bytes() == b"new" and os.listdir(tmp_path) == ["out"]
    Temporary(str(tmp_path / "out"))
    Temporary(str(tmp_path / "folder"), folder=True)
    remove_all()
    assert os.listdir(tmp_path) == ["out"]


def test_one_that_is_removed_before_it_is_locked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on another machine has locked it to remove what is left of dead ones: there is a second one then."""
    monkeypatch.setattr(temporary, "_CLEANING", LONG)
    create, cleaners = Temporary._create, []

    def seen_by_others(self: Temporary) -> Optional[int]:
        handle = create(self)
        if not cleaners:
            other = os.open(self.path, os.O_RDWR)
            fcntl.flock(other, fcntl.LOCK_EX)
            cleaners.append(threading.Timer(0.2, lambda: (os.remove(self.path), os.close(other))))
            cleaners[0].start()
        return handle

    monkeypatch.setattr(Temporary, "_create", seen_by_others)
    with Temporary(str(tmp_path / "out")) as made:
        cleaners[0].join(LONG)
        made.write(b"new")
        made.publish()
    assert (tmp_path / "out").read_bytes() == b"new" and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_that_is_removed_stays_locked_meanwhile(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """So that a process that has only just made it waits, and sees that it is gone."""
    end(writer(tmp_path / "out", kind))
    name, seen = {"file": "os.remove", "folder": "shutil.rmtree"}[kind], []

    def remove(path: str) -> None:
        handle = os.open(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        seen.append(path)

    monkeypatch.setattr("returnn_tf.util.temporary." + name, remove)
    assert temporary.remove_leftovers(str(tmp_path / "out")) == seen and len(seen) == 1


def test_read_change_write_by_many(tmp_path: pathlib.Path) -> None:
    """No change is lost, also while the file is replaced and was not there at first."""
    path = tmp_path / "count"

    def add() -> None:
        for _ in range(20):
            with exclusive(str(path), LONG) as held:
                assert held
                number = int(path.read_text() or 0)
                with Temporary(str(path), clean=False) as made:
                    made.write(str(number + 1).encode())
                    made.publish()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert path.read_text() == "80" and os.listdir(tmp_path) == ["count"]


def test_a_lock_without_a_change_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with exclusive(str(tmp_path / "new"), 0.0) as held, exclusive(str(tmp_path / "new"), 0.0) as again:
        assert held and not again
    with exclusive(str(tmp_path / "no" / "folder"), 0.0) as held:
        assert not held
    assert os.listdir(tmp_path) == []
