"""Signals: once to save and end, twice to end at once; and no process that stays behind."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from typing import Any

import pytest

from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from tests.reliability import toy
from tests.waiting import LONG, until

pytestmark = pytest.mark.slow  # each starts processes


def temporary(folder: pathlib.Path) -> list[str]:
    """Return what should not be left in the folder of the checkpoints after a clean end."""
    return [name for name in os.listdir(str(folder / "net")) if ".tmp" in name or name.endswith(".lock")]


def all_whole(folder: pathlib.Path) -> bool:
    """Return whether there is no half-written checkpoint."""
    model = str(folder / "net/toy")
    found = [*find_checkpoints(model).values(), *find_step_checkpoints(model).values()]
    return all(checkpoint.unfinished(path) or checkpoint.validate(path) is None for path in found)


@pytest.mark.parametrize(
    "fault, code, saved",
    [
        (("trace", 1, "SIGUSR1"), 138, [(1, 1)]),  # in the first step, while it is traced
        (("step", 9, "SIGINT"), 130, [(1, 9)]),
        (("write", 2, "SIGTERM"), 143, None),  # while a checkpoint is written
        (("batch", 2, "SIGTERM"), 143, []),  # in the evaluation, when the epoch's checkpoint is there already
        (("step", 9, "SIGUSR1", "SIGTERM"), 138, [(1, 9)]),  # both of a scheduler, warning and end: saved nevertheless
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_the_first_signal_saves_and_ends(
    warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path, fault: Any, code: int, saved: Any
) -> None:
    toy.write_config(tmp_path, fault=fault, **({"save_every_steps": 10} if saved is None else {}))
    assert warm.run(tmp_path) == code, toy.text_of(tmp_path)
    steps = find_step_checkpoints(str(tmp_path / "net/toy"))
    assert saved is None or sorted(steps) == saved
    assert temporary(tmp_path) == [] and all_whole(tmp_path)
    toy.write_config(tmp_path)
    assert warm.run(tmp_path) == 0, toy.text_of(tmp_path)
    toy.assert_same_end(tmp_path, undisturbed)


@pytest.mark.parametrize("fault", [("step", 30, "SIGINT", "SIGINT"), ("write", 3, "SIGTERM", "SIGTERM")])
def test_the_second_one_ends_at_once_without_half_a_file(warm: toy.Warm, tmp_path: pathlib.Path, fault: Any) -> None:
    toy.write_config(tmp_path, fault=fault, save_every_steps=10)
    assert warm.run(tmp_path) == 128 + getattr(signal, fault[-1])
    assert "ending at once, without saving" in toy.text_of(tmp_path)
    assert temporary(tmp_path) == [] and all_whole(tmp_path)
    toy.write_config(tmp_path, num_epochs=1)
    assert warm.run(tmp_path) == 0, toy.text_of(tmp_path)


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGKILL", -9)])
def test_task_forward_leaves_nothing_behind(warm: toy.Warm, tmp_path: pathlib.Path, name: str, code: int) -> None:
    """After SIGKILL, which lets nobody clean up, the next run does."""
    toy.write_config(tmp_path, num_epochs=1)
    assert warm.run(tmp_path) == 0, toy.text_of(tmp_path)
    toy.write_config(tmp_path, fault=("insert", 2, name), max_seqs=1)
    forward = {"task": "forward", "forward_data": "dev", "output_file": "out.hdf", "load_epoch": 1}
    assert warm.run(tmp_path, **forward) == code, toy.text_of(tmp_path)
    left = [path.name for path in tmp_path.iterdir() if "out.hdf" in path.name]
    assert len(left) == (name == "SIGKILL") and "out.hdf" not in left
    toy.write_config(tmp_path)
    assert warm.run(tmp_path, **forward) == 0, toy.text_of(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if "out.hdf" in path.name] == ["out.hdf"]


def test_before_the_first_step_there_is_nothing_to_save(tmp_path: pathlib.Path) -> None:
    """In a fresh process: imports and the making of the network, which takes for ever here, go on for seconds."""
    config = toy.write_config(tmp_path, requeue_exit_code=99)
    with config.open("a") as file:
        file.write("def get_network(epoch, **_):\n    import time\n    while True: time.sleep(0.01)\n")
    process = toy.start(tmp_path)
    try:
        until(lambda: process.poll() is not None or "config: toy.config" in toy.text_of(tmp_path))
        time.sleep(0.3)  # any instant of what follows is good
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(LONG) == 99, toy.text_of(tmp_path)
    finally:
        process.kill()
    assert not find_checkpoints(str(tmp_path / "net/toy")) and not find_step_checkpoints(str(tmp_path / "net/toy"))


@pytest.mark.parametrize("place, code", [("while the config is read", 143), ("in the callback", 99)])
def test_before_the_task_has_begun(tmp_path: pathlib.Path, place: str, code: int) -> None:
    """The imports take seconds on a network file system; a Ctrl-C there stays what it is in any program."""
    hang = "import pathlib, time\npathlib.Path('here').touch()\nend = time.monotonic() + 1000\n"
    hang += "while time.monotonic() < end:\n    time.sleep(0.01)\n"
    in_callback = "def startup_callback(config):\n" + "".join("    %s\n" % line for line in hang.splitlines())
    for name, expected in (("SIGTERM", code), ("SIGINT", 130)):
        (tmp_path / "here").unlink(missing_ok=True)
        (tmp_path / "toy.config").write_text("requeue_exit_code = 99\n" + (hang if code == 143 else in_callback))
        process = toy.start(tmp_path)
        try:
            until(lambda run=process: run.poll() is not None or (tmp_path / "here").exists())  # type: ignore[misc]
            os.kill(process.pid, getattr(signal, name))
            assert process.wait(LONG) == expected, toy.text_of(tmp_path)
        finally:
            process.kill()
    lines = toy.text_of(tmp_path).splitlines()
    assert lines.count("Warning: SIGTERM: exiting before the task has begun") == 1
    assert lines[-1] == "error: interrupted" and not any("Traceback" in line for line in lines)


def test_the_code_for_a_cluster_that_starts_the_job_again(warm: toy.Warm, tmp_path: pathlib.Path) -> None:
    toy.write_config(tmp_path, fault=("step", 5, "SIGUSR1"), requeue_exit_code=99)
    assert warm.run(tmp_path) == 99
    toy.write_config(tmp_path, fault=("step", 5, "SIGINT"), requeue_exit_code=99)
    assert warm.run(tmp_path) == 130


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_no_process_of_a_run_lives_longer(warm: toy.Warm, tmp_path: pathlib.Path, name: str) -> None:
    """The loading processes of the datasets end at once, however the run ends; seconds if the machine is busy."""
    toy.write_config(tmp_path, num_epochs=10000)
    pid = warm.start(tmp_path, own_process=True)
    toy.wait_for_text(warm, pid, tmp_path, "start train epoch 2")
    session = processes_of(pid)
    assert len(session) >= 3  # the run, train and dev
    os.kill(pid, getattr(signal, name))
    warm.wait(pid)
    until(lambda: not processes_of(pid), "a process is left", 60.0)


def processes_of(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name) as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(name))
    return found
