"""Contents and timing of the status file of a training run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import error_name
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.monitoring.status_file import ABORTED, StatusFile, end_for_another
from returnn_tf.engine.passes.progress import Progress
from returnn_tf.engine.passes.ranks_report import times_of
from returnn_tf.engine.passes.scored_pass import PassResult
from returnn_tf.engine.support.signals import Stopped, StopRequest, exit_code, name_of


class RunStatus:
    """Reports the state of a training run in the file that ``returnn-tf status`` reads.

    :param world: its chief writes the file
    :param stop: knows the signals received
    """

    def __init__(self, config: Config, world: World, stop: StopRequest) -> None:
        self._config = config
        self._stop = stop
        self._recorded_signal: Optional[int] = None
        self._running = False  # a step is done
        self._file = StatusFile(written_model(config), enabled=world.is_chief)
        self._file.update(world_size=world.size, hosts=world.hosts())
        stop.on_abort.append(lambda: self._file.ended(ABORTED))
        world.on_abort.append(lambda: self._aborted(world))

    def _aborted(self, world: World) -> None:
        """Record that another process ends this one; rank 1 writes the file if that other one is the chief."""
        self._file.ended(world.failure, 1)
        if world.rank == 1 and world.failure.startswith("rank 0 "):
            end_for_another(written_model(self._config), world.failure, 1)

    @contextlib.contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record an exception that passes as the end of the run."""
        try:
            yield
        except BaseException as exc:
            self.ended(exc)
            raise

    def begin(self, last_epoch: int, rates: Optional[str]) -> None:
        """Record the start of training."""
        path = None if rates is None else os.path.abspath(rates)
        self._file.update(now=True, num_epochs=last_epoch, learning_rate_file=path)

    def step(self, batch: Any, loss: float) -> None:
        """Record the batch and the loss of a step."""
        self._file.note(complete=batch.complete, loss=loss)

    def between(self, progress: Progress, result: PassResult) -> None:
        """Record the progress between two steps."""
        first, self._running = not self._running, True
        self._file.update(
            now=first,
            epoch=progress.epoch,
            step=result.steps,
            global_step=progress.first_step + result.steps,
            seconds_per_step=result.seconds_per_step,
            frames_per_second=result.frames_per_second,
        )
        if self._stop.signum is not None and self._recorded_signal is None:
            self._recorded_signal = self._stop.signum
            self._file.signal(name_of(self._recorded_signal))

    def trained(self, result: PassResult) -> None:
        """Record that the training part of an epoch is done."""
        self._file.update(now=True, ranks=[times_of(state) for state in result.by_rank], complete=1.0)

    def ended(self, error: Optional[BaseException]) -> None:
        """Record the end of the run; the error says why it is not finished."""
        if error is None:
            self._file.ended("finished", 0)
        elif isinstance(error, Stopped):
            self._file.ended(str(error), exit_code(error.signum, self._config))
        else:
            self._file.ended("%s: %s" % (error_name(error), str(error)[:1000]))
