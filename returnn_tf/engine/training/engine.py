"""Training according to a config: epochs of steps, evaluation, learning rates and checkpoints."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any, Optional

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, DataError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints.meta_graphs import BuildGraph
from returnn_tf.engine.distributed.faulty_rank import find_faulty_rank
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.distributed.world import start as start_world
from returnn_tf.engine.monitoring import reproducer
from returnn_tf.engine.passes.dump import dump_of
from returnn_tf.engine.passes.evaluator import Evaluator, normalized_losses
from returnn_tf.engine.passes.progress import PassState, Progress, Sums, data_settings
from returnn_tf.engine.passes.scored_pass import PassResult, ScoredPass
from returnn_tf.engine.passes.trainer import Trainer
from returnn_tf.engine.pretrain.learning_rates import rate_of_epoch
from returnn_tf.engine.support.nonfinite import NonFiniteError, first_bad_layer
from returnn_tf.engine.support.scores import Scores
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.engine.training.callbacks import TrainedStep
from returnn_tf.engine.training.epoch_start import entry_of, return_to_best
from returnn_tf.engine.training.parts import Begun, TrainingParts
from returnn_tf.engine.training.step_boundary import EndRequested
from returnn_tf.engine.update.update_guard import skipped_text
from returnn_tf.logging.lines import phase_text, start_line
from returnn_tf.logging.log import log


class Engine:
    """Set-up and main loop of training. Use it as a context manager; `train` runs all epochs.

    :param stop: whether a signal requests a stop
    :param world: the processes which train together; default: those of the config
    :param build_graph: function(training plan) -> content of the files ``.meta`` beside the checkpoints; None: no files
    :param begun: trainer and callbacks of the process that trains, instead of a network of its own
    :raises ConfigError: something in the config is wrong, or another run trains the model; nothing was written
    :raises DataError: a data file or checkpoint is wrong
    """

    def __init__(
        self,
        config: Config,
        stop: Optional[StopRequest] = None,
        world: Optional[World] = None,
        build_graph: Optional[BuildGraph] = None,
        begun: Optional[Begun] = None,
    ) -> None:
        self.world: World = start_world(config) if world is None else world
        self._parts = parts = TrainingParts(config, stop or StopRequest(), self.world, build_graph, begun)
        self.config = config
        self.schedule = parts.schedule
        self.first_epoch, self.last_epoch = parts.first_epoch, parts.last_epoch
        self.learning_rates = parts.learning_rates
        self.saver = parts.saver
        self.ended_early = ""  #: why a callback ended training before the last epoch

    @property
    def net(self) -> Network:
        """Return the current network."""
        return self._parts.setup.net

    @property
    def trainer(self) -> Trainer:
        """Return the trainer of the current network."""
        return self._parts.setup.trainer

    @property
    def evaluator(self) -> Evaluator:
        """Return the evaluator of the current network."""
        return self._parts.setup.evaluator

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._parts.end_dumps(complete=kind is None)
            self._parts.end_graphs(complete=kind is None)
            self._parts.status.ended(error)
            self.close()
        except DataError as exc:
            if kind is None:
                raise
            log.warn(str(exc))  # the error that ended training matters more

    def close(self) -> None:
        """Wait for checkpoints being written, end loading processes and complete event files.

        :raises DataError: a checkpoint can't be written
        """
        self._parts.close()

    def train(self) -> None:
        """Train all remaining epochs.

        :raises NonFiniteError: loss or gradient became NaN or Inf; the last checkpoint was written before
        """
        self._parts.status.begin(self.last_epoch, self.learning_rates.filename)
        self._parts.expect_graphs()
        if self.first_epoch > self.last_epoch:
            log.write(1, "All %i epochs are done; there is nothing to train." % self.last_epoch)
        if self._parts.resume.begun is None:
            self._complete(self.first_epoch - 1)
            if self.first_epoch > 1:
                self.saver.clean_up(self.learning_rates.epochs, self.first_epoch - 1)
            if self.first_epoch == 1 and CheckpointSettings(self.config).save_epoch1_initial_model:
                pretrain = self.schedule.at(1).pretrain
                self.saver.save(self.trainer, 0, self.learning_rates.epochs, last=True, pretrain=pretrain)
        self._parts.callbacks.train_begin(self.trainer)
        try:
            self._train_epochs()
        except EndRequested as exc:
            self._end_early("%s; within an epoch%s" % (exc, ", whose state is saved" if self.saver.model else ""))
            return
        self.saver.finish()
        # the next task on any rank may load the last checkpoint, which the chief writes
        self.world.barrier("the last checkpoint")

    def _train_epochs(self) -> None:
        """Train the epochs, to the last one or until a callback asks for the end after one."""
        for epoch in range(self.first_epoch, self.last_epoch + 1):
            self.train_epoch(epoch)
            if not self._parts.callbacks:
                continue
            reason = self._parts.callbacks.epoch_end(self.trainer, epoch, self.learning_rates.epochs)
            reasons = [each for each in self.world.gather(reason or self._parts.boundary.requested) if each]
            if reasons and epoch < self.last_epoch:
                if not self.saver.has(epoch):
                    pretrain = self.schedule.at(epoch).pretrain
                    self.saver.save(self.trainer, epoch, self.learning_rates.epochs, last=True, pretrain=pretrain)
                self._end_early("%s; after epoch %d" % (reasons[0], epoch))
                return
        self._parts.callbacks.train_end("")
        if self.first_epoch <= self.last_epoch:
            self._tell_unapplied()

    def _tell_unapplied(self) -> None:
        """Tell of gradients that were accumulated in the last steps, but not applied."""
        steps = self.trainer.step_count
        left, interval = self.trainer.updater.unapplied(steps)
        text = "accum_grad_multiple_step = %d: " % interval
        if left and left == steps:
            log.warn(
                text + "after all %d steps of the training, no update was due, so parameters have their initial "
                "values. Set a smaller number, or train longer." % steps
            )
        elif left:
            log.write(3, text + "the gradients of the last %d of %d steps are not applied." % (left, steps))

    def _end_early(self, reason: str) -> None:
        self.ended_early = "Training ends early: %s." % reason
        log.write(1, self.ended_early)
        self._parts.callbacks.train_end(reason)

    def train_epoch(self, epoch: int) -> None:
        """Train an epoch, or the rest of it: steps, checkpoint, evaluation, cleanup."""
        if self._parts.resume.begun is None:
            return_to_best(self._parts, epoch)
        entry = entry_of(self._parts, epoch)
        if self._parts.setup.enter(entry):
            self.trainer.ranks.broadcast(self.trainer)
        resume = self._parts.resume
        begun, position = resume.done, resume.position
        first_step = resume.begun.first_step if resume.begun else self.trainer.step_count
        progress = Progress(epoch, first_step, shared=position["shared"])
        resume.begun = None
        batches = self._parts.data.train_batches(epoch, **position)
        self._parts.data.start_evaluated(epoch)  # ready when the steps are done
        rate = rate_of_epoch(self.learning_rates, entry, epoch)
        phase = phase_text("train", epoch, pretrain=entry.pretrain)
        if entry.trainable:
            log.write(3, start_line(phase, rate))
            result = self._pass(phase, progress, begun, rate).run(batches, begun)
        else:
            result = self._pass_without_training(phase, epoch, batches)
        self.trainer.ranks.synchronize(self.trainer)
        self.trainer.ranks.check_same(self.trainer, phase)
        self._parts.reports.trained(phase, epoch, rate, first_step, result)
        self._parts.status.trained(result)
        last = epoch == self.last_epoch
        if not last:
            self._parts.data.start(epoch + 1)
        self.saver.save(self.trainer, epoch, self.learning_rates.epochs, last=last, pretrain=entry.pretrain)
        try:
            self.evaluate(epoch)
            self._parts.boundary.after_evaluation()
        except Stopped:
            if not (last or self.saver.has(epoch)):
                self._save_within(progress, result)
            self.saver.wait()
            raise
        self.saver.clean_up(self.learning_rates.epochs, epoch)

    def evaluate(self, epoch: int) -> dict[str, PassResult]:
        """Compute the scores of all evaluation datasets, and pass them to the learning-rate control.

        :raises Stopped: by a signal; the scores are discarded
        """
        results: dict[str, PassResult] = {}
        for name, source in self._parts.data.evaluated.items():
            batches = self._parts.boundary.until_signal(source.batches(epoch))
            results[name] = self.evaluator.run(
                name, epoch, batches, between=lambda *_: self._parts.boundary.after_batch(), world=self.world
            )
            self._parts.boundary.after_evaluation()
        if results:
            self._parts.reports.evaluated(epoch, results)
        return results

    def _complete(self, epoch: int) -> None:
        """Evaluate the loaded epoch, if the run ended between its checkpoint and the end of its evaluation."""
        data = self.learning_rates.epochs.get(epoch)
        if data is None or not any(key.startswith("train_") for key in data.error):
            return
        done = [
            name for name in self._parts.data.evaluated if any(key.startswith(name + "_score") for key in data.error)
        ]
        if len(done) < len(self._parts.data.evaluated):
            self.evaluate(epoch)

    def _save_within(self, progress: Progress, done: PassState, sums: Optional[Sums] = None) -> None:
        """Write a mid-epoch checkpoint.

        :param progress: epoch, and step at its start
        :param done: the pass so far
        :param sums: of the scores so far; default: those in ``done``
        """
        self.trainer.ranks.synchronize(self.trainer)
        here = {**asdict(done), "sums": done.sums if sums is None else sums}
        ranks = [PassState.from_json(value) for value in self.world.gather(here)]
        progress = replace(progress, passed=ranks[0], ranks=ranks if len(ranks) > 1 else [])
        progress.data = data_settings(self._parts.config_of(progress.epoch))
        progress.facts = self._parts.data.train_facts(progress.epoch)
        self.saver.save_within(self.trainer, progress, self.learning_rates.epochs)

    def _pass(self, phase: str, progress: Progress, begun: PassState, rate: float) -> ScoredPass:
        ranks, steps = self.trainer.ranks, begun.steps
        if not steps:
            self.net.kept.begin_pass()
        self._parts.boundary.begin(ranks.control, lambda: progress.first_step + steps + 1)

        def between(result: PassResult, scores: Scores) -> None:
            nonlocal steps
            steps = result.steps
            self._parts.status.between(progress, result)
            self._parts.boundary.after_step(lambda: self._save_within(progress, result, scores.sums()))

        return ScoredPass(
            phase=phase,
            convert=self.trainer.tensors,
            step=lambda tensors, batch: self._step(tensors, batch, progress.epoch, steps, rate),
            normalized=normalized_losses(self.net),
            with_exp=TrainingSettings(self._parts.setup.entry.config).calculate_exp_loss,
            ranks_level=3,
            log_batch_size=LoggingSettings(self._parts.setup.entry.config).log_batch_size,
            log_memory_usage=LoggingSettings(self._parts.setup.entry.config).tf_log_memory_usage,
            on_step=lambda batch, result: self._after_step(batch, result, progress, steps + 1),
            between=between,
            world=self.world,
            join=lambda batches: ranks.join(batches, lambda: self._any_tensors(progress.epoch)),
            common_sums=ranks.in_step,
            dump=dump_of(self.net, "train", progress.epoch, self.world, events=self._parts.reports.summaries.folder),
        )

    def _pass_without_training(self, phase: str, epoch: int, batches: Any) -> PassResult:
        """Go through the training data in the mode of evaluation, for an epoch with ``#trainable`` False.

        :raises Stopped: by a signal; the epoch will be repeated
        """
        log.write(3, "start %s without training ('#trainable' is False)" % phase)
        boundary = self._parts.boundary
        result = self.evaluator.run(
            "train",
            epoch,
            boundary.until_signal(batches),
            between=lambda *_: boundary.after_batch(),
            world=self.world,
        )
        boundary.after_evaluation()
        return result

    def _any_tensors(self, epoch: int) -> Any:
        return self.trainer.tensors(self._parts.data.any_train_batch(epoch).feed)

    def _after_step(self, batch: Any, result: StepResult, progress: Progress, number: int) -> None:
        self._parts.status.step(batch, result.total_loss)
        self._parts.reports.step(self.net, result)
        if self._parts.callbacks:
            place = (progress.epoch, number, progress.first_step + number)
            done = TrainedStep(*place, result, list(batch.seq_tags), self.trainer)
            reason = self._parts.callbacks.step_end(done)
            if reason:
                self._parts.boundary.request_end(reason)

    def _step(self, tensors: Any, batch: Any, epoch: int, number: int, rate: float) -> StepResult:
        if self.trainer.updater.reset_before(number):
            log.write(4, "Reset the state of the optimizer before step %d of epoch %d" % (number, epoch))
        with reproducer.keep_on_failure(self.config, self.trainer, epoch, tensors, batch.seq_tags):
            try:
                with self._parts.reports.profiler.step():
                    result = self.trainer.step(tensors, rate)
            except NonFiniteError as exc:
                find = partial(first_bad_layer, self.net, tensors, step=exc.step)
                raise find_faulty_rank(self.world, exc, batch.seq_tags, find) from None
        if result.spike or not result.updated:
            log.warn("%s. Sequences: %s" % (skipped_text(result), ", ".join(batch.seq_tags)))
        return result
