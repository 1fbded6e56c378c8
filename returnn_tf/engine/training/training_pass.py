"""The steps of an epoch of training, with what happens after each: records, callbacks, mid-epoch checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Callable, Optional

from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.learning_rate.schedule import EpochRates
from returnn_tf.engine.monitoring import reproducer
from returnn_tf.engine.passes.dump import dump_of
from returnn_tf.engine.passes.progress import PassState, Progress, Sums, data_settings
from returnn_tf.engine.passes.scored_pass import PassResult, ScoredPass
from returnn_tf.engine.passes.split_step import normalized_losses
from returnn_tf.engine.support.nonfinite import NonFiniteError, first_bad_layer
from returnn_tf.engine.support.scores import Scores
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.engine.training.callbacks import TrainedStep
from returnn_tf.engine.training.set_up import TrainingRun
from returnn_tf.engine.update.update_guard import skipped_text
from returnn_tf.logging.log import log

_MAX_TAGS = 20


class TrainingPass:
    """Trains the current network for an epoch, or the rest of it.

    :param progress: epoch, and step at its start
    :param rates: the learning rates of the epoch
    """

    def __init__(self, run: TrainingRun, phase: str, progress: Progress, rates: EpochRates) -> None:
        self._run = run
        self._trainer = run.current.trainer
        self._phase = phase
        self._progress = progress
        self._rates = rates
        self._steps = 0  # done in the epoch

    def run(self, batches: Any, begun: PassState) -> PassResult:
        """Run a step for each batch.

        :param batches: all, or the remaining ones
        :param begun: what is done of the epoch already
        :raises NonFiniteError: loss or gradient is NaN or Inf
        :raises Stopped: by a signal; the state is on disk
        :raises EndRequested: by a callback; the state is on disk
        """
        run, trainer, epoch = self._run, self._trainer, self._progress.epoch
        if not begun.steps:
            trainer.net.kept.begin_pass()
        self._steps = begun.steps
        run.boundary.begin(trainer.ranks.control, lambda: self._progress.first_step + self._steps + 1)
        logging = LoggingSettings(run.current.entry.config)
        steps = ScoredPass(
            phase=self._phase,
            convert=trainer.tensors,
            step=self._step,
            normalized=normalized_losses(trainer.net),
            with_exp=TrainingSettings(run.current.entry.config).calculate_exp_loss,
            ranks_level=3,
            log_batch_size=logging.log_batch_size,
            log_memory_usage=logging.tf_log_memory_usage,
            on_step=self._after_step,
            between=self._between,
            world=run.world,
            join=lambda batches: trainer.ranks.join(batches, self._any_tensors),
            common_sums=trainer.ranks.in_step,
            dump=dump_of(trainer.net, "train", epoch, run.world, events=run.reports.summaries.folder),
        )
        return steps.run(batches, begun)

    def save(self, done: PassState, sums: Optional[Sums] = None) -> None:
        """Write a mid-epoch checkpoint.

        :param done: the pass so far
        :param sums: of the scores so far; default: those in ``done``
        """
        run, trainer = self._run, self._trainer
        trainer.ranks.synchronize(trainer)
        here = {**asdict(done), "sums": done.sums if sums is None else sums}
        ranks = [PassState.from_json(value) for value in run.world.gather(here)]
        progress = replace(self._progress, passed=ranks[0], ranks=ranks if len(ranks) > 1 else [])
        progress.data = data_settings(run.schedule.at(progress.epoch).config)
        progress.facts = run.data.train_facts(progress.epoch)
        run.saver.save_within(trainer, progress, run.learning_rates.epochs)

    def _step(self, tensors: Any, batch: Any) -> StepResult:
        run, trainer, epoch = self._run, self._trainer, self._progress.epoch
        if trainer.updater.reset_before(self._steps):
            log.write(4, "Reset the state of the optimizer before step %d of epoch %d" % (self._steps, epoch))
        with reproducer.keep_on_failure(run.config, trainer, epoch, tensors, batch.seq_tags):
            try:
                with run.reports.profiler.step():
                    result = trainer.step(tensors, self._rates.of_step(trainer.step_count + 1))
            except NonFiniteError as exc:
                find = partial(first_bad_layer, trainer.net, tensors, step=exc.step)
                raise find_faulty_rank(run.world, exc, batch.seq_tags, find) from None
        if result.spike or not result.updated:
            log.warn("%s. Sequences: %s" % (skipped_text(result), ", ".join(batch.seq_tags)))
        return result

    def _after_step(self, batch: Any, result: StepResult) -> None:
        run, number = self._run, self._steps + 1
        run.status.step(batch, result.total_loss)
        run.reports.step(self._trainer.net, result)
        if run.callbacks:
            place = (self._progress.epoch, number, self._progress.first_step + number)
            reason = run.callbacks.step_end(TrainedStep(*place, result, list(batch.seq_tags), self._trainer))
            if reason:
                run.boundary.request_end(reason)

    def _between(self, result: PassResult, scores: Scores) -> None:
        self._steps = result.steps
        self._run.status.between(self._progress, result)
        self._run.boundary.after_step(lambda: self.save(result, scores.sums()))

    def _any_tensors(self) -> Any:
        return self._trainer.tensors(self._run.data.any_train_batch(self._progress.epoch).feed)


def find_faulty_rank(
    world: World, error: NonFiniteError, seq_tags: Sequence[str], find_layer: Callable[[], Optional[str]]
) -> NonFiniteError:
    """Return the error with rank, host, sequences and layer of the first rank that is not finite on its own.

    If gradients are summed, the error occurs in the same step on all ranks, so all of them call this. With
    ``"reduce": "param"`` only one rank does, and does not communicate.

    :param error: raised by the step
    :param seq_tags: the batch of this rank
    :param find_layer: finds the first bad layer; slow
    """
    mine: Any = None
    if not error.own_finite:
        mine = [world.name if world.size > 1 else "", list(seq_tags)[:_MAX_TAGS], find_layer()]
    found = [item for item in (world.gather(mine) if error.common else [mine]) if item]
    if not found:  # the sum of finite numbers was not finite
        return error.at([], None)
    error.where = found[0][0]
    return error.at(found[0][1], found[0][2])
