"""Boundary between two training steps: mid-epoch checkpoints, and stopping on a signal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from returnn_tf.engine.checkpoints.lock import ModelLock
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.distributed.control import Control
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.support.time_limit import TimeLimit


class EndRequested(Exception):
    """Training ends within an epoch because a callback asked for it; its state is on disk."""


class StepBoundary:
    """Handles checkpoint requests and signals between steps.

    :param saver: writes the checkpoints
    :param stop: request by a signal
    :param lock: on the files of the model
    :param world: its processes stop at the same step
    :param limit: of the time of this process
    :param start_epoch_fixed: ``start_epoch`` is set, so that the same command starts over instead of resuming
    """

    def __init__(
        self,
        saver: Saver,
        stop: StopRequest,
        lock: ModelLock,
        world: World,
        limit: TimeLimit,
        *,
        start_epoch_fixed: bool = False,
    ) -> None:
        self._saver = saver
        self._stop = stop
        self._lock = lock
        self._world = world
        self._limit = limit
        self._next = "Without start_epoch the" if start_epoch_fixed else "The"
        self._control = Control()
        self._reason = ""

    def request_end(self, reason: str) -> None:
        """Request that training ends after this step or the next one, as all processes agree."""
        self._reason = self._reason or reason

    @property
    def requested(self) -> str:
        """Return the reason why this process requests the end of training, or ""."""
        return self._reason

    def begin(self, control: Control, step: Callable[[], int]) -> None:
        """Start to handle requests: from now on there is something to save on a signal.

        :param control: flags by which all processes agree, at each step, on a pause after it
        :param step: returns the global step after the next step
        """
        self._stop.graceful = True
        self._control = control
        control.wants_pause = lambda: self._saver.due(step()) or self._is_over() or bool(self._reason)

    def _is_over(self) -> bool:
        """Return whether a signal, or the time limit, requests a stop of this process."""
        if self._limit.is_near(self._saver.slowest):
            self._stop.out_of_time(max(self._limit.seconds_left, 0.0))
        return self._stop.signum is not None

    def _requests(self) -> list[tuple[int, str]]:
        """Return (number of a signal, its cause) of the processes that are to stop; all have to call this."""
        found = self._world.gather([self._stop.signum, self._stop.cause])
        return [(signum, cause) for signum, cause in found if signum is not None]

    def after_step(self, save: Callable[[], None]) -> None:
        """Save or stop, if requested; called between two steps of training.

        :param save: writes the state
        :raises Stopped: by a signal; the state is on disk
        :raises EndRequested: see `request_end`; the state is on disk
        :raises DataError: a checkpoint could not be written
        :raises ConfigError: another process has taken the lock
        """
        self._saver.check()
        self._lock.check()
        if not self._control.any_pause and not (self._reason and self._world.size == 1):
            return
        requests = self._requests()
        save()
        self._world.committed()
        if requests:
            self.wait_until_saved()
            saved = "its state is saved" if self._saver.model else "nothing is saved, for the config has no model"
            raise self._stopped(*requests[0], "within the epoch; %s" % saved)
        reasons = [reason for reason in self._world.gather(self._reason) if reason]
        if reasons:
            self.wait_until_saved()
            raise EndRequested(reasons[0])

    def wait_until_saved(self) -> None:
        """Wait until the state is on disk, in all processes: what started them may kill the rest when one has ended."""
        self._world.heartbeat.long_phase("saving")
        self._saver.wait()
        self._world.barrier("the state to be saved")

    def until_signal(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of an evaluation; with several processes, they end early in one that gets a signal.

        It can't raise `Stopped`, as the others wait for the result: all raise it in `after_evaluation`.
        """
        return batches if self._world.size == 1 else self._until_signal(batches)

    def _until_signal(self, batches: Iterable[Any]) -> Iterator[Any]:
        with contextlib.ExitStack() as resources:
            if hasattr(batches, "close"):
                resources.callback(batches.close)
            for batch in batches:
                yield batch
                if self._is_over():
                    return

    def after_batch(self) -> None:
        """Stop, if requested; called between two batches of an evaluation.

        :raises Stopped: by a signal
        """
        if self._world.size == 1 and self._is_over():
            raise self._stopped(*self._requests()[0], "while evaluating, which will be repeated")

    def after_evaluation(self) -> None:
        """Stop, if requested; called when all processes have finished an evaluation or left it on a signal.

        :raises Stopped: by a signal to one of them
        """
        if self._world.any(self._stop.signum is not None):
            raise self._stopped(*self._requests()[0], "while evaluating, or after it")

    def _stopped(self, signum: int, cause: str, when: str) -> Stopped:
        text = "Stopped by %s %s. %s same command resumes from there." % (cause, when, self._next)
        return Stopped(signum, text)
