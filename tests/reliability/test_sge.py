"""Job scripts of tools/submit.py in a real Grid Engine: warnings, exit code 99, arrays, jobs without progress."""

from __future__ import annotations

import signal

import pytest

from tests.reliability.job_program import submit, write_config
from tests.reliability.sge_node import sge  # noqa: F401  a fixture

pytestmark = pytest.mark.slow  # each starts processes


@pytest.fixture
def folder(tmp_path):
    """Return a folder whose name needs quotes, so that every path of the job does."""
    path = tmp_path / 'it\'s a "b" `c` folder; #'
    path.mkdir()
    return path


def _submit(node, folder, *arguments):
    """Return the id of a job, and its log."""
    resources = ["--sge-mem", "virtual_free"]
    job = submit(node.env, folder, "--scheduler", "sge", *resources, *arguments)
    return job, folder / "log" / ("a.%s.log" % job)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_job_that_is_warned_saves_and_goes_back_to_the_queue(sge, folder, number):  # noqa: F811
    write_config(folder / "a.config", goal=1)
    job, log = _submit(sge, folder, "a.config", "++key", "a 'value'")
    sge.poll(lambda: (folder / "ready.0").exists(), log)
    sge.signal(job, number)  # SIGUSR1: the soft limit of time; SIGUSR2: SIGKILL is near
    sge.wait(job, log)
    text = log.read_text()
    assert "restarts so far: 0" in text and "restarts so far: 1" in text
    assert text.count("got SIGUSR1") == 1 and "%s: asking the training to save and stop" % number.name in text
    assert "training ['a.config', '++key', \"a 'value'\"] from 1" in text and "finished" in text
    assert "resumes at: net.001" in text


def test_a_deleted_job_saves_and_stays_away(sge, folder):  # noqa: F811
    write_config(folder / "a.config", goal=1)
    job, log = _submit(sge, folder, "--tasks", "1", "--cpus", "2", "a.config")
    sge.poll(lambda: (folder / "ready.0").exists(), log)
    sge.delete(job)
    sge.wait(job, log)
    text = log.read_text()
    assert "SIGUSR2: asking the training to save" in text and (folder / "net.001.index").exists()
    assert text.count("restarts so far") == 1


def test_a_job_without_progress_gives_up(sge, folder):  # noqa: F811
    write_config(folder / "a.config", saves=False, stops=True)
    job, log = _submit(sge, folder, "--max-starts", "2", "a.config")
    sge.wait(job, log)
    assert "giving up: 2 starts ended without progress, all at: the beginning" in log.read_text()


def test_an_array(sge, folder):  # noqa: F811
    for name in "ab":
        write_config(folder / ("%s.config" % name), model=str(folder / name), goal=0)
    job, log = _submit(sge, folder, "a.config", "b.config")
    job = job.partition(".")[0]
    sge.wait(job, log)
    for index, name in enumerate("ab"):
        text = (folder / "log" / ("a.%s.%d.log" % (job, index + 1))).read_text()
        assert "training ['%s.config'] from 0" % name in text and "finished" in text


@pytest.mark.long
def test_the_soft_limit_of_time(sge, folder):  # noqa: F811
    write_config(folder / "a.config", goal=1)
    job, log = _submit(sge, folder, "--time", "2m", "--lead", "1m", "a.config")
    sge.wait(job, log)
    text = log.read_text()
    assert "SIGUSR1: asking the training to save" in text and "finished" in text
