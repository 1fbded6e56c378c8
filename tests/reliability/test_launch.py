"""Trainings of two processes by ``returnn-tf launch``: what a signal to it, and the loss of a rank, come to."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from returnn_tf.engine.monitoring.status_file import read_status
from tests.reliability import ranks_runs, toy
from tests.waiting import until

pytestmark = pytest.mark.slow  # each starts processes

_LAUNCH = [sys.executable, "-m", "returnn_tf", "launch", "--processes", "2"]
_SIZE = {"train": {"class": "Task12AXDataset", "num_seqs": 60, "seq_ordering": "random"}, "num_epochs": 2}


def _waiting(folder: pathlib.Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a training, and return when it waits in a step."""
    toy.write_config(folder, fault=("step", 10, 1), save_every_steps=4, **_SIZE)
    process = toy.start(folder, [*_LAUNCH, *options])
    waiting = folder / "waiting.0"
    until(waiting.exists, "it does not come to the step", ranks_runs.SECONDS, details=lambda: toy.text_of(folder))
    return process


def _children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes of the ranks."""
    return [int(pid) for pid in pathlib.Path("/proc/%d/task/%d/children" % ((process.pid,) * 2)).read_text().split()]


def test_a_signal_to_launch_stops_all_ranks_and_the_same_command_resumes(tmp_path: pathlib.Path) -> None:
    process = _waiting(tmp_path)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(ranks_runs.SECONDS) == 128 + signal.SIGUSR1, toy.text_of(tmp_path)
    text = toy.text_of(tmp_path)
    assert "Stopped by SIGUSR1 within the epoch; its state is saved." in text and "launch: " not in text
    resumed = toy.start(tmp_path, _LAUNCH)
    assert resumed.wait(ranks_runs.SECONDS) == 0, toy.text_of(tmp_path)
    text = toy.text_of(tmp_path)[len(text) :]
    assert "Resuming within epoch 1" in text and "Saved net/toy.002" in text
    assert "2 processes train together, connected by TensorFlow: rank 0/2 on %s" % socket.gethostname() in text


def test_a_killed_rank_ends_the_other_one_and_launch(tmp_path: pathlib.Path) -> None:
    process = _waiting(tmp_path)
    pids = _children(process)
    os.kill(pids[1], signal.SIGKILL)
    assert process.wait(ranks_runs.SECONDS) == 128 + signal.SIGKILL, toy.text_of(tmp_path)
    text = toy.text_of(tmp_path)
    assert "launch: rank 1 (process %d) was killed by SIGKILL; the others have 15 s to end" % pids[1] in text
    assert "rank 1 on %s (last: " % socket.gethostname() in text and "has ended or was killed" in text
    reason = read_status(str(tmp_path / "net" / ".toy.status.json"))["ended"]["reason"]
    assert "rank 1 on %s" % socket.gethostname() in reason and "has ended or was killed" in reason
    assert not os.path.exists("/proc/%d" % pids[0])


@pytest.mark.long
def test_all_are_gone_a_minute_after_one_was_stopped(tmp_path: pathlib.Path) -> None:
    """With the default timeout; the stopped one, too."""
    process = _waiting(tmp_path)
    pids, started = _children(process), time.monotonic()
    os.kill(pids[1], signal.SIGSTOP)
    assert process.wait(ranks_runs.SECONDS) == 1, toy.text_of(tmp_path)
    assert time.monotonic() - started < 60 and not any(os.path.exists("/proc/%d" % pid) for pid in pids)
    text = toy.text_of(tmp_path)
    assert "rank 1 on %s" % socket.gethostname() in text and "has been silent for" in text
    assert "launch: rank 1: stopped by a signal, ended by force" in text


def test_the_other_rank_starts_again_alone(tmp_path: pathlib.Path) -> None:
    """It does what is left of the epoch, from the last checkpoint on."""
    process = _waiting(tmp_path, "--min-processes", "1")
    os.kill(_children(process)[1], signal.SIGKILL)
    assert process.wait(ranks_runs.SECONDS) == 0, toy.text_of(tmp_path)
    text = toy.text_of(tmp_path)
    assert "launch: starting again with 1 process;" in text
    assert re.search(r"Resuming within epoch 1 after \d+ batches", text) and "Saved net/toy.002" in text, text
