"""Evaluations, status, reports and refused starts beside a training: nothing ends, nothing gets lost."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
from typing import Any

import pytest

from returnn_tf.cli.main import main
from tests.reliability import toy
from tests.waiting import until

pytestmark = pytest.mark.slow  # each starts processes

#: Short epochs, all of which is saved, and deleted as soon as possible.
BUSY = {
    "num_epochs": 10000,
    "save_every_steps": 1,
    "cleanup_old_models": {"keep_last_n": 1, "keep_best_n": 0, "keep": []},
    "train": {"class": "Task12AXDataset", "num_seqs": 30, "seq_ordering": "random"},
    "network": {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}},
}


@pytest.mark.parametrize("count", [2, pytest.param(50, marks=pytest.mark.long)])
def test_many_tasks_beside_a_training_that_saves_every_step(
    warm: toy.Warm, tmp_path: pathlib.Path, capsys: Any, count: int
) -> None:
    toy.write_config(tmp_path, **BUSY)
    training = warm.start(tmp_path)
    toy.wait_for_text(warm, training, tmp_path, "Saved net/toy.002")
    model = str(tmp_path / "net" / "toy")
    written: set[tuple[int, str]] = set()
    for number in range(count):
        name = "n%d" % (number % 5)
        data = {name: {"class": "Task12AXDataset", "num_seqs": 2, "fixed_random_seed": number}}
        assert warm.run(tmp_path, task="eval", eval_datasets=data) == 0, toy.text_of(tmp_path)
        written |= _evaluated(tmp_path)
        assert len(written) == number + 1, toy.text_of(tmp_path)  # each time of a later epoch
        assert warm.run(tmp_path) == 2, toy.text_of(tmp_path)
        capsys.readouterr()
        assert main(["status", "--json", model]) == 0
        assert json.loads(capsys.readouterr().out)[0]["alive"]
        assert main(["report", model, "--no-model", "--force", "--output", str(tmp_path / "report.html")]) == 0
        assert warm.poll(training) is None, toy.text_of(tmp_path)
    os.kill(training, signal.SIGTERM)
    assert warm.wait(training) == 143, toy.text_of(tmp_path)
    scores = toy.scores(tmp_path)
    assert _evaluated(tmp_path) == written
    assert all("dev_score" in errors for epoch, (_, errors) in scores.items() if epoch < max(scores) - 1)
    trained = [epoch for epoch, (_, errors) in scores.items() if "train_score" in errors]
    assert trained == list(range(1, len(trained) + 1)) and len(trained) >= len(scores) - 1
    assert "is skipped" not in toy.text_of(tmp_path) and "Traceback" not in toy.text_of(tmp_path)
    files = [name for folder in (tmp_path, tmp_path / "net") for name in os.listdir(folder)]
    assert [name for name in files if ".tmp" in name or "lock" in name] == []


def _evaluated(folder: pathlib.Path) -> set[tuple[int, str]]:
    """Return epoch and name of all scores that evaluations have added."""
    found = [(epoch, name) for epoch, (_, errors) in toy.scores(folder).items() for name in errors]
    return {(epoch, name) for epoch, name in found if re.fullmatch(r"n\d+_score", name)}


def _files(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of all files below a folder, but not of the log of our own."""
    paths = [path for path in folder.rglob("*") if path.name != "log.txt"]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def _all_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs any more."""
    stats = pathlib.Path("/proc/%d/task" % pid).glob("*/stat")
    try:
        return all(path.read_text().rpartition(")")[2].split()[0] == "T" for path in stats)
    except OSError:  # one has ended
        return False


@pytest.mark.parametrize("changes", [{}, {"learning_rate_file": "new/rates", "tf_log_dir": "events"}])
def test_a_refused_start_leaves_no_trace(warm: toy.Warm, tmp_path: pathlib.Path, changes: dict[str, Any]) -> None:
    toy.write_config(tmp_path, **BUSY)
    training = warm.start(tmp_path)
    toy.wait_for_text(warm, training, tmp_path, "Saved net/toy.001")
    os.kill(training, signal.SIGSTOP)
    try:
        until(lambda: _all_stopped(training), "its threads have not stopped")
        before = _files(tmp_path)
        assert warm.run(tmp_path, **changes) == 2, toy.text_of(tmp_path)
        after = _files(tmp_path)
        folder = str(tmp_path / "net")  # where the name of the lock was tried
        assert before.pop(folder)[0] == after.pop(folder)[0]
        assert before == after
    finally:
        os.kill(training, signal.SIGCONT)
    os.kill(training, signal.SIGTERM)
    assert warm.wait(training) == 143, toy.text_of(tmp_path)
