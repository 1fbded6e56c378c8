"""Job scripts of tools/submit.py in a real Slurm: signals, requeues, arrays, and jobs that make no progress.

What the jobs run here is a program of some lines that behaves as a training does; the training itself is in
test_slurm_training.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.reliability.job_program import ROOT, submit, write_config
from tests.reliability.slurm_node import slurm  # noqa: F401  a fixture
from tests.waiting import until

pytestmark = pytest.mark.slow  # each starts processes


def _until_ready(slurm, job, folder, saved):  # noqa: F811
    slurm.until(job, ("RUNNING",), restarts=saved)
    slurm.poll(lambda: (folder / ("ready.%d" % saved)).exists(), job)


@pytest.fixture
def folder(tmp_path):
    """Return a folder whose name needs quotes, so that every path of the job does."""
    path = tmp_path / 'it\'s a "$HOME" folder'
    path.mkdir()
    return path


def test_a_job_that_is_warned_saves_and_goes_back_to_the_queue(slurm, folder):  # noqa: F811
    config = write_config(folder / "a b.config")
    job = submit(slurm.env, folder, config, "++key", "a 'value'")
    for start in range(2):
        _until_ready(slurm, job, folder, start)
        slurm.warn(job)  # as Slurm does it some time before the end: --signal=B:USR1@180
    assert slurm.wait(job) == "COMPLETED"
    text = slurm.log_of(job)
    for start in range(3):
        assert "start on %s, restarts so far: %d" % (os.uname().nodename, start) in text
        assert "training ['a b.config', '++key', \"a 'value'\"] from %d" % start in text
    assert "resumes at: the beginning" in text and "resumes at: net.002" in text
    assert text.count("got SIGUSR1") == 2 and text.count("ended with exit code 138") == 2
    assert "ended with exit code 0" in text
    assert int(slurm.facts(job)["Restarts"]) == 2


def test_a_job_that_slurm_takes_down_and_requeues(slurm, folder):  # noqa: F811
    job = submit(slurm.env, folder, write_config(folder / "a.config", goal=1))
    _until_ready(slurm, job, folder, 0)
    slurm.requeue(job)
    assert slurm.wait(job) == "COMPLETED"
    text = slurm.log_of(job)
    assert text.count("got SIGTERM") == 1 and "from 1" in text
    assert int(slurm.facts(job)["Restarts"]) == 1


def test_a_cancelled_job_stays_away(slurm, folder):  # noqa: F811
    job = submit(slurm.env, folder, write_config(folder / "a.config"))
    _until_ready(slurm, job, folder, 0)
    slurm.cancel(job)
    assert slurm.wait(job) == "CANCELLED"
    until(lambda: "ended with exit code 143" in slurm.log_of(job), details=lambda: slurm.log_of(job))
    assert "goes back" not in slurm.log_of(job)


def test_a_job_without_progress_gives_up(slurm, folder):  # noqa: F811
    job = submit(slurm.env, folder, "--max-starts", "2", write_config(folder / "a.config", saves=False, stops=True))
    assert slurm.wait(job) == "FAILED"
    text = slurm.log_of(job)
    assert "giving up: 2 starts ended without progress, all at: the beginning" in text
    assert text.count("training [") == 2


def test_a_training_that_fails_is_not_repeated(slurm, folder):  # noqa: F811
    (folder / "a.config").write_text("model = 'net'")  # this "training" fails, as goal is not set
    job = submit(slurm.env, folder, "a.config")
    assert slurm.wait(job) == "FAILED"
    assert slurm.facts(job)["ExitCode"] == "1:0"
    assert "ended with exit code 1" in slurm.log_of(job)


def test_an_array(slurm, folder):  # noqa: F811
    configs = [write_config(folder / ("%s.config" % name), model=str(folder / name), goal=0) for name in "ab"]
    job = submit(slurm.env, folder, *configs)
    for index, config in enumerate(configs):
        assert slurm.wait("%s_%d" % (job, index)) == "COMPLETED"
        text = (folder / "log" / ("a.%s_%d.log" % (job, index))).read_text()
        assert "training ['%s'] from 0" % config in text and "finished" in text


def test_slurm_understands_every_option(slurm, folder):  # noqa: F811
    options = [
        "--tasks",
        "2",
        "--cpus",
        "1",
        "--queue",
        "main",
        "--extra=--comment=a b",
        "--no-requeue",
        "--lead",
        "1m",
    ]
    job = submit(slurm.env, folder, "--launcher", "srun", *options, write_config(folder / "a.config", goal=0))
    facts = slurm.facts(job)
    assert facts["NumTasks"] == "2" and facts["Requeue"] == "0" and facts["TimeLimit"] == "00:10:00"
    assert facts["MinMemoryNode"] == "200M" and facts["Partition"] == "main"
    assert slurm.wait(job) == "COMPLETED"
    assert slurm.log_of(job).count("finished") == 2  # srun started two


def test_a_refused_job_says_why(slurm, folder):  # noqa: F811
    write_config(folder / "a.config")
    command = [sys.executable, str(ROOT / "tools" / "submit.py"), "--queue", "nowhere", "a.config"]
    done = subprocess.run(command, cwd=folder, env=slurm.env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "sbatch rejected the job" in done.stderr and "invalid partition" in done.stderr
