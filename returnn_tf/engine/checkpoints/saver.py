"""Schedule for writing and deleting the checkpoints of a training run.

A save has two parts: a snapshot of all variables between two steps, which takes almost no time, and the writing in a
background thread. A mid-epoch checkpoint is deleted once there are two newer ones to resume from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints import adapters, checkpoint, model_dir
from returnn_tf.engine.checkpoints.checkpoint import CheckpointInfo
from returnn_tf.engine.checkpoints.cleanup import epochs_to_delete, options_from_config
from returnn_tf.engine.checkpoints.meta_graphs import BuildGraph, MetaGraphs
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.checkpoints.shares import Shares
from returnn_tf.engine.learning_rate.file import EpochData, format_epochs
from returnn_tf.engine.passes.progress import Progress
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support.fingerprint import fingerprint, settings
from returnn_tf.logging.log import log
from returnn_tf.logging.text import bytes_text
from returnn_tf.util.lazy_tf import tf

_MIN_KEPT = 2  # minimum number of checkpoints kept, whatever the options
_COMPLETE = float("inf")  # in place of a step: sorts after all steps of the epoch

Rates = Mapping[int, EpochData]


class Saver:
    """Writes the checkpoints of a training run under the path prefix ``model``; none without it or with ``dry_run``.

    :param writes: False if another process writes the files
    :param shares: the processes that write the checkpoints together; None: one process writes them
    :param build_graph: makes the content of the files ``.meta``, see `MetaGraphs`; None: there are none
    :param stays_in_memory: the trained network is used by this process, so nothing is lost without ``model``
    :raises ConfigError: wrong options, or the folder can't be written
    """

    def __init__(
        self,
        config: Config,
        *,
        writes: bool = True,
        shares: Optional[Shares] = None,
        build_graph: Optional[BuildGraph] = None,
        stays_in_memory: bool = False,
    ) -> None:
        wanted = CheckpointSettings(config)
        self.model: Optional[str] = model_dir.written_model(config) or None
        self._writes = writes and self.model is not None
        self._shares = None if self.model is None else shares
        self._interval = max(wanted.save_interval, 1)
        self._every_steps = wanted.save_every_steps
        self._every_seconds = 60.0 * wanted.save_every_minutes
        self._seed = TrainingSettings(config).random_seed
        self._fingerprint, self._settings = fingerprint(config), settings(config)
        self._cleanup = options_from_config(config)
        self._background = Background()
        self.graphs = MetaGraphs(build_graph if self._writes and wanted.write_meta_graph else None)
        self._last_time = time.monotonic()
        self._last_place = (0, 0)  # epoch, and number of its last step
        self._wanted = False  # a checkpoint is due
        self.slowest = 0.0  #: seconds that the slowest checkpoint has taken
        self._undeletable: set[str] = set()
        if self._writes:
            model_dir.prepare(str(self.model))
        elif wanted.model and self.model is None:
            log.write(2, "dry_run is set: the training writes no checkpoints, scores, event files or status.")
        elif self.model is None and not stays_in_memory:
            log.warn("The config has no model = '<path prefix>', so the trained parameters will not be saved.")

    def due(self, step: int) -> bool:
        """Return whether a mid-epoch checkpoint is due after this global step.

        While one is being written, the next one waits. With several processes, the one which writes decides.
        """
        if (self._every_steps and step % self._every_steps == 0) or (
            self._every_seconds and time.monotonic() - self._last_time >= self._every_seconds
        ):
            self._wanted = True
        return self._wanted and self._writes and not self._background.busy

    def has(self, epoch: int) -> bool:
        """Return whether a checkpoint is written at the end of this epoch, even if it is not the last one."""
        return self.model is not None and epoch % self._interval == 0

    def save(
        self, trainer: StepTrainer, epoch: int, rates: Rates, *, last: bool = False, pretrain: bool = False
    ) -> None:
        """Write the checkpoint of an epoch if one is due.

        :param epoch: the last complete one; 0: the initial parameters
        :param rates: the learning rates and scores so far
        :param last: this is the final checkpoint
        :param pretrain: mark the epoch as one of pretraining in the name
        """
        if self.model is not None and (self.has(epoch) or last):
            prefix = model_dir.prefix_of_epoch(self.model, epoch, pretrain=pretrain)
            self._submit(prefix, (epoch, _COMPLETE), trainer, epoch, rates, None)

    def save_within(self, trainer: StepTrainer, progress: Progress, rates: Rates) -> None:
        """Write a mid-epoch checkpoint, unless this step already has one.

        Steps are counted over all processes: this one may be idle in some of them.

        :param rates: the learning rates and scores so far
        """
        place, step = (progress.epoch, progress.passed.steps), progress.first_step + progress.passed.steps
        if self.model is not None and place != self._last_place:
            self._last_place = place
            prefix = model_dir.prefix_of_step(self.model, progress.epoch, step)
            self._submit(prefix, (progress.epoch, step), trainer, progress.epoch, rates, progress)

    def _submit(
        self,
        prefix: str,
        key: tuple[int, float],
        trainer: StepTrainer,
        epoch: int,
        rates: Rates,
        progress: Optional[Progress],
    ) -> None:
        self._last_time, self._wanted = time.monotonic(), False
        kept = trainer.kept_states()  # of all ranks
        if not self._writes and self._shares is None:
            return
        self._background.wait()
        net = trainer.net
        # RETURNN has kept states among the parameters only; here those beside them count, which all processes have.
        params, state = trainer.averages.stored(net.stored_params, trainer.state())
        params, state = adapters.stored(net.plan, params, state)
        params, state = {**params, **net.kept.params}, {**state, **kept}
        shares = self._shares
        if shares is not None:  # other programs read the parameters of epochs, from one file
            own = shares.own({"": params, checkpoint.STATE: state}, [""] if progress is None else [])
            params, state = own[""], own[checkpoint.STATE]
        params, state = _snapshot(params), _snapshot(state)
        if not self._writes and shares is not None:
            self._background.submit(lambda: checkpoint.save_share(prefix, params, state, shares))
            return
        info = CheckpointInfo(
            epoch=epoch,
            step=trainer.step_count,
            random_seed=self._seed,
            config_sha256=self._fingerprint,
            learning_rates=format_epochs(rates),
            settings=self._settings,
            progress=None if progress is None else progress.as_json(),
        )
        plan, config = trainer.net.plan, trainer.net.config

        def write() -> None:
            begin = time.monotonic()
            checkpoint.save(prefix, params, state, info, shares=shares)
            self.slowest = max(self.slowest, time.monotonic() - begin)
            self._written(prefix, key, plan, config)

        self._background.submit(write)

    def _written(self, prefix: str, key: tuple[int, float], plan: Plan, config: Config) -> None:
        model_dir.write_index(str(self.model))
        self.graphs.add(plan, config, prefix)
        log.write(3, "Saved %s" % prefix)
        self._drop_steps(prefix, key)

    def _drop_steps(self, newest: str, key: tuple[int, float]) -> None:
        """Delete all but the most recent mid-epoch checkpoints up to the one just written."""
        steps: dict[tuple[int, float], str] = dict(find_step_checkpoints(str(self.model)).items())
        epochs = {(epoch, _COMPLETE): path for epoch, path in find_checkpoints(str(self.model)).items()}
        up_to_now = sorted(other for other in {**epochs, **steps} if other <= key)
        self._delete_after(newest, [steps[old] for old in up_to_now[:-_MIN_KEPT] if old in steps])

    def clean_up(self, rates: Rates, epoch: int) -> None:
        """Delete old checkpoints according to ``cleanup_old_models``, once the newest one has been validated.

        :param rates: the learning rates and scores so far
        :param epoch: the last one trained; later ones are of an earlier run, and ignored until they are trained again
        """
        if self._writes and self._cleanup is not None:
            frozen = {of: EpochData(data.learning_rate, dict(data.error)) for of, data in rates.items() if of <= epoch}
            self._background.submit(lambda: self._delete_epochs(frozen, epoch))

    def _delete_epochs(self, rates: Rates, last: int) -> None:
        assert self.model is not None and self._cleanup is not None
        stored = {epoch: path for epoch, path in find_checkpoints(self.model).items() if epoch <= last}
        delete = epochs_to_delete(stored, rates, self._cleanup)
        delete = delete[: max(len(stored) - _MIN_KEPT, 0)]
        freed = self._delete_after(stored[max(stored)], [stored[epoch] for epoch in delete]) if delete else {}
        gone = [str(epoch) for epoch in delete if stored[epoch] in freed]
        if gone:
            model_dir.write_index(self.model)
            log.write(
                3, "Deleted the checkpoints of epochs %s: %s" % (", ".join(gone), bytes_text(sum(freed.values())))
            )

    def finish(self) -> None:
        """Delete the mid-epoch checkpoints after training, if enough epoch checkpoints exist."""
        if self._writes:
            self.wait()
            stored, steps = find_checkpoints(str(self.model)), find_step_checkpoints(str(self.model))
            if len(stored) >= _MIN_KEPT:
                newest = max(stored)
                self._delete_after(stored[newest], [path for (epoch, _), path in steps.items() if epoch <= newest])

    def _delete_after(self, newest: str, old: list[str]) -> dict[str, int]:
        """Delete checkpoints if a newer one is intact; return the bytes freed by path of the deleted ones.

        A checkpoint that can't be deleted stays, with a warning the first time: it only takes space.
        """
        reason = checkpoint.validate(newest) if old else None
        if reason is not None:
            log.warn("The checkpoint %s is damaged (%s), so no old one is deleted." % (newest, reason))
            return {}
        freed: dict[str, int] = {}
        for path in old:
            try:
                with self.graphs.lock:
                    freed[path] = checkpoint.delete(path)
            except OSError as exc:
                if path not in self._undeletable:
                    self._undeletable.add(path)
                    where, why = exc.filename or path, exc.strerror or exc
                    log.warn("The old checkpoint %s stays: %s can't be deleted (%s)." % (path, where, why))
        return freed

    def check(self) -> None:
        """Check the background writer for errors.

        :raises DataError: a checkpoint could not be written
        """
        self._background.check()

    def wait(self) -> None:
        """Wait until everything is written.

        :raises DataError: writing failed
        """
        self._background.wait()

    def close(self) -> None:
        """Wait until everything is written, and end the thread."""
        self._background.close()


def _snapshot(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by name, on the host, copy-on-write: a later update of a variable copies its value."""
    with tf.device("/CPU:0"):
        return {name: tf.identity(variable) for name, variable in variables.items()}


class Background:
    """Runs at most one job at a time. Its errors are raised in the training thread, by the next call of a method.

    The thread is started with the first job.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._job: Optional[Future[Any]] = None

    @property
    def busy(self) -> bool:
        """Return whether a job is running."""
        return self._job is not None and not self._job.done()

    def check(self) -> None:
        """Raise the error of a finished job, if any."""
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            job.result()

    def submit(self, job: Callable[[], Any]) -> None:
        """Start a job, after waiting for the previous one."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Wait for the running job; raise its error."""
        if self._job is not None:
            job, self._job = self._job, None
            job.result()

    def close(self) -> None:
        """Wait for the running job, raise its error, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
