"""returnn-tf status of real runs: while they train, after a signal, killed, finished."""

from __future__ import annotations

import json
import os
import pathlib
import signal
from typing import Any

import pytest

from returnn_tf.cli.main import main
from tests.reliability import toy
from tests.waiting import until

pytestmark = pytest.mark.slow  # each starts processes


def _facts(folder: pathlib.Path, capsys: Any) -> Any:
    assert main(["status", "--json", str(folder / "net" / "toy")]) == 0
    return json.loads(capsys.readouterr().out)[0]


def _text(folder: pathlib.Path, capsys: Any) -> str:
    assert main(["status", str(folder / "net")]) == 0
    return str(capsys.readouterr().out)


def _started(warm: toy.Warm, folder: pathlib.Path, capsys: Any, **changes: Any) -> int:
    """Start a run and wait until it trains."""
    toy.write_config(folder, **changes)
    pid = warm.start(folder)

    def trains() -> bool:
        assert warm.poll(pid) is None, toy.text_of(folder)
        if not (folder / "net" / ".toy.status.json").exists():  # without it there is no run to tell of
            return False
        status = _facts(folder, capsys)["status"]
        return status.get("pid") == pid and "seconds_per_step" in status  # not yet after the step that compiles

    until(trains, "it does not train", pause=0.05, details=lambda: toy.text_of(folder))
    return pid


_ENDLESS = {"class": "Task12AXDataset", "num_seqs": 50000, "seq_ordering": "random"}


def test_running_then_stopped_then_resumed_then_finished(warm: toy.Warm, tmp_path: pathlib.Path, capsys: Any) -> None:
    changes = {"train": _ENDLESS, "save_every_steps": 20, "num_epochs": 1}
    pid = _started(warm, tmp_path, capsys, **changes)
    text = _text(tmp_path, capsys)
    assert "toy: running as pid %d on %s for 0:0" % (pid, os.uname().nodename) in text
    assert "epoch 1 of 1, step " in text and " s/step, " in text and "last signal" not in text
    os.kill(pid, signal.SIGTERM)
    assert warm.wait(pid) == 143
    text = _text(tmp_path, capsys)
    assert "ended (Stopped by SIGTERM" in text and "exit code 143) at " in text
    assert "last signal: SIGTERM at " in text and "resumes at toy.001.step" in text
    facts = _facts(tmp_path, capsys)
    step = facts["status"]["global_step"]
    assert facts["checkpoints"][0]["name"] == "toy.001.step%d" % step

    pid = _started(warm, tmp_path, capsys, **changes)
    assert _facts(tmp_path, capsys)["alive"] and "ended" not in _facts(tmp_path, capsys)["status"]
    os.kill(pid, signal.SIGKILL)
    assert warm.wait(pid) == -9
    text = _text(tmp_path, capsys)
    assert "dead without a final status (killed, or the machine went down): pid %d on " % pid in text
    assert "resumes at toy.001.step" in text


def test_a_finished_run_and_one_that_fails(warm: toy.Warm, tmp_path: pathlib.Path, capsys: Any) -> None:
    folder = tmp_path / "good"
    toy.write_config(folder)
    assert warm.run(folder) == 0
    text = _text(folder, capsys)
    assert "ended (finished, exit code 0)" in text and "resumes at toy.004; other checkpoints: toy.003" in text
    scores = {epoch: values[1] for epoch, values in toy.scores(folder).items()}
    best = min(scores, key=lambda epoch: float(scores[epoch]["dev_score"]))
    assert "dev_score %.6g (epoch %d)" % (scores[best]["dev_score"], best) in text
    folder = tmp_path / "bad"
    toy.write_config(folder, learning_rate=1e30, optimizer={"class": "sgd"}, gradient_noise=1e38)
    assert warm.run(folder) != 0
    assert "ended (NonFiniteError: " in _text(folder, capsys)
