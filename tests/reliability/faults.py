"""Faults at exact places of a run: the toy's setting ``fault = (place, number, fault)``.

``("step", 30, "SIGTERM")`` sends the process a signal in its 30th step, which goes on once the signal was heard.
``("step", 30, "exit")`` does what `ACTIONS` says, there and at the same place from then on.
``("step", 30, 2)`` waits there for a signal from outside, but only in the first two processes in the folder.
"""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import time
from typing import Any, Callable, Optional

from returnn_tf.datasets import HDFWriter
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.distributed import world
from returnn_tf.engine.monitoring.reports import Reports
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support import atomic_files as checkpoint_files
from returnn_tf.engine.support import signals
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.step_boundary import StepBoundary
from tests.waiting import until

#: Place -> object and the name of its function at which the signal comes.
PLACES: dict[str, tuple[Any, str]] = {
    "train": (Engine, "train"),  # before anything is trained
    "step": (StepTrainer, "step"),  # in a step
    "trained": (Reports, "trained"),  # after the steps of an epoch, before its checkpoint
    "saving": (Saver, "save_within"),  # before a checkpoint within an epoch is made, all others being written
    "batch": (StepBoundary, "after_batch"),  # between two batches of an evaluation
    "trace": (StepTrainer, "_emit"),  # while the first step is traced
    "insert": (HDFWriter, "insert_batch"),  # while task forward writes its file
    "write": (checkpoint_files, "describe"),  # while a checkpoint is written: beside the training
    "rename": (checkpoint_files.os, "replace"),  # while its files are moved to their place
}

#: Written when a fault comes, so that others can tell how long ago that was.
STAMP = "fault.time"


def _full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "net/toy")


#: What a process does to itself, besides sending itself a signal.
ACTIONS: dict[str, Callable[[], None]] = {
    "exit": lambda: os._exit(3),
    "full": _full_disk,
    "hang": lambda: time.sleep(1000),
}

#: Which calls count, where not all do.
COUNTED: dict[str, Callable[..., bool]] = {"rename": lambda source, target: "toy.0" in os.path.basename(target)}


def install(fault: Optional[tuple[Any, ...]]) -> None:
    """Arm a fault.

    :param fault: place, the number of its call from 1, name of a signal or an action, or how many processes wait for a
        signal; further ones follow it
    """
    if fault:
        place, number, *names = fault
        if place == "saving":
            _save_when_due()
        owner, name = PLACES[place]
        setattr(owner, name, _failing(getattr(owner, name), number, names, COUNTED.get(place, lambda *args: True)))


def _save_when_due() -> None:
    """Wait for the last checkpoint to be written before each step: else their steps depend on how fast that is."""
    due = Saver.due

    def due_after_writing(saver: Saver, step: int) -> bool:
        saver.wait()
        return due(saver, step)

    setattr(Saver, "due", due_after_writing)  # noqa: B010


def _failing(function: Callable[..., Any], number: int, names: Any, counted: Callable[..., bool]) -> Callable[..., Any]:
    calls: list[bool] = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.extend([True] * counted(*args))
        if len(calls) >= number and names[0] in ACTIONS:
            pathlib.Path(STAMP).touch(exist_ok=True)
            ACTIONS[names[0]]()
        elif len(calls) == number and counted(*args):
            for sent, name in enumerate(names):
                if isinstance(name, int):
                    _wait_for_a_signal(name)
                    continue
                time.sleep(0.7 * bool(sent))  # closer together they count as one
                _send(getattr(signal, name))
        return function(*args, **kwargs)

    return failing


def _send(number: int) -> None:
    """Send this process a signal, and wait until the thread that hears signals has heard it or ended the process."""
    pathlib.Path(STAMP).touch()
    stops, insisting = signals._listening[-1:], number in signals._INSISTING
    again = insisting and any(stop._insisted is not None for stop in stops)
    os.kill(os.getpid(), number)
    until(lambda: not again and all((stop._insisted if insisting else stop.signum) is not None for stop in stops))


def _wait_for_a_signal(processes: int) -> None:
    """Wait until somebody sends a signal; ``waiting.0`` says that the first process waits.

    Of several ranks one does.
    """
    number = len(list(pathlib.Path().glob("waiting.*")))
    if number < processes and (world.of_process() or (0,))[0] == 0:
        pathlib.Path("waiting.%d" % number).write_text("")
        until(lambda: signals._listening[-1].signum is not None)
