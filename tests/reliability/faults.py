"""Signals at exact places of a run: the toy's setting ``fault = (place, number, signal)``.

``("step", 30, "SIGTERM")`` sends the process a signal in its 30th step.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Optional

from returnn_tf.datasets import HDFWriter
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.passes.trainer import Trainer
from returnn_tf.engine.support import atomic_files as checkpoint_files
from returnn_tf.engine.training.step_boundary import StepBoundary

#: Place -> object and the name of its function at which the signal comes.
PLACES: dict[str, tuple[Any, str]] = {
    "step": (Trainer, "step"),  # in a step
    "saving": (Saver, "save_within"),  # before a checkpoint within an epoch is made, all others being written
    "batch": (StepBoundary, "after_batch"),  # between two batches of an evaluation
    "trace": (Trainer, "_emit"),  # while the first step is traced
    "insert": (HDFWriter, "insert_batch"),  # while task forward writes its file
    "write": (checkpoint_files, "describe"),  # while a checkpoint is written: beside the training
    "rename": (checkpoint_files.os, "replace"),  # while its files are moved to their place
}

#: Which calls count, where not all do.
COUNTED: dict[str, Callable[..., bool]] = {"rename": lambda source, target: "toy.0" in os.path.basename(target)}


def install(fault: Optional[tuple[Any, ...]]) -> None:
    """Arm a fault.

    :param fault: place, the number of its call from 1, name of the signal; further names of signals follow it
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
        if len(calls) == number and counted(*args):
            for sent, name in enumerate(names):
                time.sleep(0.7 * bool(sent))  # closer together they count as one
                os.kill(os.getpid(), getattr(signal, name))
            time.sleep(0.2)  # it is heard by another thread
        return function(*args, **kwargs)

    return failing
