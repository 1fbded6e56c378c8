"""Trainings in a real Slurm which are taken down and requeued: they end bit for bit as if nothing had happened."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.reliability import ranks_runs, toy
from tests.reliability.slurm_node import slurm  # noqa: F401  a fixture

pytestmark = pytest.mark.slow  # each starts processes

_STEPS = 150  # of each start that is interrupted; an epoch has 140, so that each comes to another one
_STEPS_OF_TWO = 80  # likewise, of each of two ranks
_SIZE = {
    "train": {"class": "Task12AXDataset", "num_seqs": 250, "seq_ordering": "random"},
}
_ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_LONG = 600.0  # seconds that a busy machine may take


def _submit(node, folder, *options):
    command = [sys.executable, str(toy.ROOT / "tools" / "submit.py"), "--time", "30m", "--mem", "500M"]
    command += ["--program", "%s -m returnn_tf" % sys.executable, *options, "toy.config"]
    environment = toy.environment(**{**node.env, **_ROOT_MAY, "TF_CPP_MIN_LOG_LEVEL": "3"})
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[3].rstrip(";")


def _undisturbed(folder, command=None, **overrides):
    toy.write_config(folder, **_SIZE)
    process = toy.start(folder, command, **overrides)
    try:
        assert process.wait(_LONG) == 0, toy.text_of(folder)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return folder


def _disturb(node, job, folder, restart, how):
    """Call ``how`` when the run waits for it, in the middle of an epoch."""
    node.until(job, ("RUNNING",), _LONG, restarts=restart)
    node.poll((folder / ("waiting.%d" % restart)).exists, job, _LONG)
    how(job)


def _ended_alike(node, job, folder, expected, restarts):
    assert node.wait(job, _LONG) == "COMPLETED", node.log_of(job)
    text = node.log_of(job)
    assert int(node.facts(job)["Restarts"]) == restarts
    for number in range(restarts):
        assert "restarts so far: %d" % (number + 1) in text
    assert len(re.findall(r"resumes at: toy\.\d+\.step\d+", text)) == restarts
    toy.assert_same_end(folder, expected)
    status = subprocess.run(
        [sys.executable, "-m", "returnn_tf", "status", "net"],
        cwd=folder,
        env=toy.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "ended (finished, exit code 0)" in status and "resumes at toy.004" in status


@pytest.fixture(scope="module")
def longer_undisturbed(tmp_path_factory):
    return _undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.slow
def test_one_process_requeued_by_slurm_and_by_itself(slurm, tmp_path, longer_undisturbed):  # noqa: F811
    toy.write_config(tmp_path, fault=("step", _STEPS, 2), **_SIZE)
    job = _submit(slurm, tmp_path)
    _disturb(slurm, job, tmp_path, 0, slurm.requeue)
    _disturb(slurm, job, tmp_path, 1, slurm.warn)
    _ended_alike(slurm, job, tmp_path, longer_undisturbed, restarts=2)


@pytest.mark.long
def test_two_ranks_requeued_three_times(slurm, tmp_path):  # noqa: F811
    ranks_runs.launcher("mpirun")
    toy.write_config(tmp_path, fault=("step", _STEPS_OF_TWO, 3), **_SIZE)
    path = pathlib.Path(sys.executable).parent
    mpirun = ["env", *("%s=%s" % item for item in _ROOT_MAY.items()), "mpirun", "-np", "2", "-bind-to", "none"]
    command = [*mpirun, "-oversubscribe", sys.executable, "-m", "returnn_tf"]
    expected = _undisturbed(tmp_path / "undisturbed", command, use_horovod=True)
    options = ["--tasks", "2", "--launcher", "mpirun", "--setup", "PATH=%s:$PATH" % path]
    job = _submit(slurm, tmp_path, *options)
    for restart in range(3):
        _disturb(slurm, job, tmp_path, restart, slurm.requeue)
    _ended_alike(slurm, job, tmp_path, expected, restarts=3)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["srun", "launch"])
def test_two_ranks_of_tensorflow_requeued_by_slurm_and_by_themselves(launcher, slurm, tmp_path):  # noqa: F811
    """All ranks get SIGTERM of Slurm at the same time, SIGUSR1 by what started them."""
    toy.write_config(tmp_path, fault=("step", _STEPS_OF_TWO, 2), **_SIZE)
    command = [sys.executable, "-m", "returnn_tf", "launch", "--processes", "2"]
    expected = _undisturbed(tmp_path / "undisturbed", command)
    job = _submit(slurm, tmp_path, "--tasks", "2", "--launcher", launcher)
    _disturb(slurm, job, tmp_path, 0, slurm.requeue)
    _disturb(slurm, job, tmp_path, 1, slurm.warn)
    _ended_alike(slurm, job, tmp_path, expected, restarts=2)
    assert "2 processes train together, connected by TensorFlow: rank 0/2" in slurm.log_of(job)
