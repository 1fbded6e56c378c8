"""The status file of a run whose process was killed before it could say why it ends."""

from __future__ import annotations

import pathlib

import pytest

from returnn_tf.config import Config
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.monitoring.run_status import RunStatus
from returnn_tf.engine.monitoring.status_file import StatusFile, end_for_another, read_status
from returnn_tf.engine.passes.progress import Progress
from returnn_tf.engine.passes.scored_pass import PassResult
from returnn_tf.engine.support.signals import StopRequest


@pytest.mark.parametrize("ended", [False, True])
def test_another_process_tells_how_it_ended(tmp_path: pathlib.Path, ended: bool) -> None:
    """Unless that is known already."""
    model = str(tmp_path / "net")
    file = StatusFile(model)
    file.update(now=True, pid=1, epoch=3)
    if ended:
        file.ended("finished", 0)
    end_for_another(model, "rank 0 on node has ended or was killed.", 1)
    facts = read_status(str(tmp_path / ".net.status.json"))
    reason = "finished" if ended else "rank 0 on node has ended or was killed."
    assert facts["ended"]["reason"] == reason and facts["epoch"] == 3 and facts["pid"] == 1


def test_a_run_without_a_status_file_gets_none(tmp_path: pathlib.Path) -> None:
    end_for_another(str(tmp_path / "net"), "rank 0 on node has ended or was killed.", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_command_line_that_is_no_text(tmp_path: pathlib.Path) -> None:
    """What is read can be printed and written everywhere."""
    file = StatusFile(str(tmp_path / "net"))
    file.update(now=True, command=["a\udcff.config", "\u00fc"])
    facts = read_status(str(tmp_path / ".net.status.json"))
    assert facts["command"] == ["a?.config", "\u00fc"] and str(facts).encode("utf8")


def test_the_speed_is_that_of_the_steps_without_compiling(tmp_path: pathlib.Path) -> None:
    """It is not known before there is one; then it says how long the rest will take."""
    status = RunStatus(Config({"model": str(tmp_path / "net")}), World(), StopRequest())
    first = PassResult(steps=1, frames=50, seconds=60.0, setup_steps=1, setup_frames=50, setup_seconds=60.0)
    status.between(Progress(epoch=1, first_step=0), first)
    path = str(tmp_path / ".net.status.json")
    facts = read_status(path)
    assert facts["step"] == 1 and "seconds_per_step" not in facts and "frames_per_second" not in facts
    later = PassResult(steps=5, frames=250, seconds=64.0, setup_steps=1, setup_frames=50, setup_seconds=60.0)
    status.between(Progress(epoch=1, first_step=0), later)
    later.by_rank = [later]
    status.trained(later)
    facts = read_status(path)
    assert (facts["seconds_per_step"], facts["frames_per_second"]) == (1.0, 50.0)
    assert facts["ranks"][0]["seconds_per_step"] == 1.0
