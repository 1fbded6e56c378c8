"""``kill -9`` at any instant: the same command goes on, and the end is the same bit for bit.

A series starts the toy run again and again, kills it each time at a random instant, and lets it end at last. Most
instants are drawn from the time since the last sign of life in the log, so that imports, tracing, steps, writing and
evaluation are all hit.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import signal
import time
from typing import Callable

import pytest

from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from tests.reliability import toy
from tests.waiting import LONG

pytestmark = pytest.mark.slow  # each starts processes

SAVE_EVERY = 4  # steps
FILES = 5  # of a checkpoint, the manifest last
LINES = (
    "config: toy",
    "Loaded net",
    "start train",
    "Saved net",
    "Saved net",
    "finished after",
    "eval epoch",
    "dev: score",
)


def wait_for(condition: Callable[[], bool], alive: Callable[[], bool], seconds: float = LONG) -> None:
    """Wait until the condition holds or the run is over."""
    end = time.monotonic() + seconds
    while alive() and not condition() and time.monotonic() < end:
        time.sleep(0.003)


def kill_somewhere(warm: toy.Warm, folder: pathlib.Path, rng: random.Random) -> bool:
    """Start the run and kill it at a random instant: some time after a random kind of line in the log.

    :return: False if it came to its end before
    """
    seen = len(toy.text_of(folder))
    pid = warm.start(folder)
    codes: list[int] = []

    def alive() -> bool:
        code = warm.poll(pid)
        codes.extend([] if code is None else [code])
        return not codes

    line, number = rng.choice(LINES), rng.choice([1, 1, 1, 2])
    wait_for(lambda: toy.text_of(folder)[seen:].count(line) >= number, alive)
    time.sleep(rng.choice([0.0, 0.02, 0.2, 1.0]) * rng.random())
    if alive():
        os.kill(pid, signal.SIGKILL)
        codes.append(warm.wait(pid))
    assert codes[0] in (0, -signal.SIGKILL), toy.text_of(folder)[seen:]
    return codes[0] != 0


def check_after_kill(folder: pathlib.Path) -> None:
    """Check that something can be resumed from, once there was something, and that all of it is intact."""
    model = str(folder / "net/toy")
    found = [*find_checkpoints(model).values(), *find_step_checkpoints(model).values()]
    whole = [path for path in found if not checkpoint.unfinished(path)]
    assert [path for path in whole if checkpoint.validate(path) is not None] == []
    saved = toy.text_of(folder).count("Saved net/")
    assert len(whole) >= min(saved, 2)


def series(warm: toy.Warm, folder: pathlib.Path, expected: pathlib.Path, rng: random.Random, kills: int) -> int:
    """Run one training with at most n kills.

    :return: how many there were
    """
    toy.write_config(folder, save_every_steps=SAVE_EVERY)
    done = 0
    while done < kills and kill_somewhere(warm, folder, rng):
        check_after_kill(folder)
        done += 1
    assert warm.run(folder) == 0, toy.text_of(folder)
    toy.assert_same_end(folder, expected)
    assert [name for name in os.listdir(str(folder / "net")) if "tmp" in name or "lock" in name] == []
    return done


def many_series(
    warm: toy.Warm, folder: pathlib.Path, expected: pathlib.Path, rng: random.Random, kills: int, each: int
) -> None:
    """As many trainings as are needed for a number of kills, with at most ``each`` kills."""
    number = 0
    while kills > 0:
        kills -= series(warm, folder / str(number), expected, rng, min(kills, each))
        shutil.rmtree(str(folder / str(number)))
        number += 1
        print("%d kills left after %d trainings" % (kills, number), flush=True)


def test_a_killed_run_ends_as_if_nothing_had_happened(
    warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    many_series(warm, tmp_path, undisturbed, random.Random(1), kills=3, each=3)


def killed_between_files(warm: toy.Warm, folder: pathlib.Path, expected: pathlib.Path, number: int) -> None:
    """Kill the run when n files were moved to their place, and let it end.

    :param number: of the call which moves a file
    """
    toy.write_config(folder, save_every_steps=SAVE_EVERY, fault=("rename", number, "SIGKILL"))
    assert warm.run(folder) == -signal.SIGKILL
    check_after_kill(folder)
    toy.write_config(folder, save_every_steps=SAVE_EVERY)
    assert warm.run(folder) == 0, toy.text_of(folder)
    toy.assert_same_end(folder, expected)


def test_killed_while_the_files_of_a_checkpoint_are_moved(
    warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """When all but its manifest are there."""
    killed_between_files(warm, tmp_path, undisturbed, 2 * FILES)
    assert "its manifest is missing, so writing it was not completed" in toy.text_of(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", range(1, 3 * FILES + 2))
def test_killed_before_each_of_the_files(
    warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path, number: int
) -> None:
    killed_between_files(warm, tmp_path, undisturbed, number)


@pytest.mark.long
def test_two_hundred_kills(warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """``KILLS`` and ``KILLS_SEED`` in the environment give another number and other instants."""
    rng = random.Random(int(os.environ.get("KILLS_SEED", "0")))
    many_series(warm, tmp_path, undisturbed, rng, int(os.environ.get("KILLS", "200")), each=12)
