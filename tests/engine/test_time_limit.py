"""Trainings that end before the time limit of their job of Slurm."""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any, Optional

import pytest

from returnn_tf.config import Config
from returnn_tf.engine.checkpoints.selection import find_step_checkpoints
from returnn_tf.engine.support import time_limit
from returnn_tf.engine.support.signals import Stopped, StopRequest, exit_code
from returnn_tf.engine.support.time_limit import LEAST_SECONDS, TimeLimit, end_of_job
from returnn_tf.engine.training.engine import Engine
from tests.engine.test_fit import DEV, SETTINGS, TRAIN


@pytest.mark.parametrize(
    "left, steps, saving, near",
    [
        (LEAST_SECONDS - 1, [], 0, True),
        (LEAST_SECONDS + 5, [1, 1], 0, False),
        (190, [50, 20], 40, False),
        (170, [50, 20], 40, True),  # 2 * (50 + 40) = 180
        (None, [1000], 1000, False),
    ],
)
def test_what_has_to_be_left(
    monkeypatch: pytest.MonkeyPatch, left: Optional[float], steps: list[float], saving: float, near: bool
) -> None:
    clock = {"now": 100.0}
    monkeypatch.setattr(time_limit.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(time_limit.time, "time", lambda: 1e9)
    limit = TimeLimit(None if left is None else 1e9 + left, 2.0)
    found = limit.is_near(saving)
    for seconds in steps:
        clock["now"] += seconds
        found = limit.is_near(saving)
    assert found == near


@pytest.fixture
def scontrol(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the file with the answer of a stand-in for Slurm's command."""
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$4" = 17 ] && cat "%s/answer"\n' % tmp_path)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    return tmp_path / "answer"


@pytest.mark.parametrize(
    "answer, end",
    [
        ("JobId=17 EndTime=1800000000 TimeLimit=1-00:00:00", 1.8e9),
        ("JobId=17 EndTime=2027-01-15T08:00:00 TimeLimit=1-00:00:00", time.mktime((2027, 1, 15, 8, 0, 0, 0, 0, -1))),
        ("JobId=17 EndTime=Unknown TimeLimit=UNLIMITED", None),
        ("", None),
    ],
)
def test_end_by_the_command(scontrol: pathlib.Path, caplog: Any, answer: str, end: Optional[float]) -> None:
    """Slurm before 22.05 gives a job no variable with its end."""
    scontrol.write_text(answer)
    assert end_of_job({"SLURM_JOB_ID": "17"}) == end
    assert ("job 17 of Slurm has no known time limit" in caplog.text) == (end is None)
    assert end_of_job({"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "1700000000"}) == 1.7e9


def test_without_a_job(caplog: Any) -> None:
    assert end_of_job({}) is None and "this is no job of Slurm" in caplog.text


@pytest.mark.slow
def test_a_training_saves_ends_and_resumes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "net")
    stop = {"stop_for_resubmission_when_low_time_left": True, "requeue_exit_code": 99}
    config = Config({**SETTINGS, "train": TRAIN, "dev": DEV, "num_epochs": 1, "model": model, **stop})
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "%d" % (time.time() + LEAST_SECONDS - 10))
    with pytest.raises(Stopped, match=r"by the time limit of the job, \d+ s before it, within the epoch") as info:
        with Engine(config, StopRequest(config)) as engine:
            engine.train()
    assert list(find_step_checkpoints(model)) == [(1, 1)] and exit_code(info.value.signum, config) == 99
    assert "s: finishing the step and saving" in capsys.readouterr().out
    monkeypatch.setenv("SLURM_JOB_END_TIME", "%d" % (time.time() + 86400))
    with Engine(config, StopRequest(config)) as engine:
        engine.train()
    assert "Resuming within epoch 1 after 1 batches" in capsys.readouterr().out
