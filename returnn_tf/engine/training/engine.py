"""Training according to a config: epochs of steps, evaluation, learning rates and checkpoints."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, DataError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.engine.checkpoints.meta_graphs import BuildGraph
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.distributed.world import start as start_world
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.learning_rate.schedule import EpochRates, schedule_from_config
from returnn_tf.engine.passes.progress import Progress
from returnn_tf.engine.passes.scored_pass import PassResult
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.schedule import EpochNetwork, NetworkSchedule, rate_of_epoch
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.training.best_model import best_epoch, load_best
from returnn_tf.engine.training.set_up import HandedOverState, set_up
from returnn_tf.engine.training.step_boundary import EndRequested
from returnn_tf.engine.training.training_pass import TrainingPass
from returnn_tf.engine.update.averages import name_of_current
from returnn_tf.logging.lines import phase_text, start_line
from returnn_tf.logging.log import log


class Engine:
    """Set-up and main loop of training. Use it as a context manager; `train` runs all epochs.

    :param stop: whether a signal requests a stop
    :param world: the processes which train together; default: those of the config
    :param build_graph: function(training plan, its config) -> content of the files ``.meta`` beside the checkpoints;
        None: no files
    :param handed_over: trainer and callbacks of the process that trains, instead of a new network
    :raises ConfigError: something in the config is wrong, or another run trains the model; nothing was written
    :raises DataError: a data file or checkpoint is wrong
    """

    def __init__(
        self,
        config: Config,
        stop: Optional[StopRequest] = None,
        world: Optional[World] = None,
        build_graph: Optional[BuildGraph] = None,
        handed_over: Optional[HandedOverState] = None,
    ) -> None:
        world = start_world(config) if world is None else world
        self.run = set_up(config, stop or StopRequest(), world, build_graph, handed_over)
        self.ended_early = ""  #: why a callback ended training before the last epoch

    @property
    def net(self) -> Network:
        """Return the current network."""
        return self.run.current.net

    @property
    def trainer(self) -> StepTrainer:
        """Return the trainer of the current network."""
        return self.run.current.trainer

    @property
    def schedule(self) -> NetworkSchedule:
        """Return network and settings by epoch."""
        return self.run.schedule

    @property
    def learning_rates(self) -> LearningRateControl:
        """Return the learning-rate control, with the scores of all epochs."""
        return self.run.learning_rates

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            try:
                self.run.end_dumps(complete=kind is None)
                self.run.end_graphs(complete=kind is None)
            except DataError as exc:
                error = error or exc
                raise
            finally:
                self.run.status.ended(error)
                self.run.reports.ended(error)
                self.run.close()
        except DataError as exc:
            if kind is None:
                raise
            log.warn(str(exc))  # the error that ended training matters more

    def train(self) -> None:
        """Train all remaining epochs.

        :raises NonFiniteError: loss or gradient became NaN or Inf; the last checkpoint was written before
        """
        run, first, last = self.run, self.run.resume.epoch, self.run.last_epoch
        run.status.begin(last, run.learning_rates.filename)
        run.expect_graphs()
        if first > last:
            log.write(1, "All %i epochs are done; there is nothing to train." % last)
        if run.resume.begun is None:
            self._complete(first - 1)
            if first > 1:
                run.saver.clean_up(run.learning_rates.epochs, first - 1)
            if first == 1 and CheckpointSettings(run.config).save_epoch1_initial_model:
                self._save(0, last=True)
        run.callbacks.train_begin(self.trainer)
        try:
            for epoch in range(first, last + 1):
                self.train_epoch(epoch)
                reason = self._end_after(epoch)
                if reason and epoch < last:
                    if not run.saver.has(epoch):
                        self._save(epoch, last=True)
                    self._end_early("%s; after epoch %d" % (reason, epoch))
                    break
            else:
                run.callbacks.train_end("")
                if first <= last:
                    self._log_unapplied()
        except EndRequested as exc:
            self._end_early("%s; within an epoch%s" % (exc, ", whose state is saved" if run.saver.model else ""))
            return
        run.saver.finish()
        # the next task on any rank may load the last checkpoint, which the chief writes
        run.world.barrier("the last checkpoint")

    def train_epoch(self, epoch: int) -> None:
        """Train an epoch, or the rest of it: steps, checkpoint, evaluation, cleanup."""
        run = self.run
        begun, done, position = run.resume.begun_of(epoch), run.resume.done(epoch), run.resume.position(epoch)
        if begun is None:
            self._return_to_best(epoch)
        entry = self._entry_of(epoch)
        if run.current.enter(entry):
            self.trainer.ranks.broadcast(self.trainer)
        first_step = self.trainer.step_count if begun is None else begun.first_step
        batches = run.data.train_batches(epoch, **position)
        run.data.start_evaluated(epoch)  # ready when the steps are done
        rates = EpochRates(schedule_from_config(entry.config), epoch, rate_of_epoch(run.learning_rates, entry, epoch))
        phase = phase_text("train", epoch, pretrain=entry.pretrain)
        steps = TrainingPass(run, phase, Progress(epoch, first_step, shared=position["shared"]), rates)
        if entry.trainable:
            log.write(3, start_line(phase, rates.of_step(self.trainer.step_count + 1)))
            result = steps.run(batches, done)
        else:
            log.write(3, "start %s without training ('#trainable' is False)" % phase)
            result = self._evaluated("train", epoch, batches)
        self.trainer.ranks.synchronize(self.trainer)
        self.trainer.ranks.check_same(self.trainer, phase)
        rate = rates.of_step(max(self.trainer.step_count, 1))
        run.reports.trained(phase, epoch, rate, first_step, result)
        run.status.trained(result)
        last = epoch == run.last_epoch
        if not last:
            run.data.start(epoch + 1)
        self._save(epoch, last=last)
        try:
            self.evaluate(epoch)
            run.boundary.after_evaluation()
        except Stopped:
            if not (last or run.saver.has(epoch)):
                steps.save(result)
            run.boundary.wait_until_saved()
            raise
        run.saver.clean_up(run.learning_rates.epochs, epoch)

    def evaluate(self, epoch: int) -> dict[str, PassResult]:
        """Compute the scores of all evaluation datasets, and pass them to the learning-rate control.

        :raises Stopped: by a signal; the scores are discarded
        """
        evaluated, averages = self.run.data.evaluated, self.trainer.averages
        with averages.in_evaluation():
            results = {name: self._evaluated(name, epoch, source.batches(epoch)) for name, source in evaluated.items()}
        if averages.both:
            for name, source in evaluated.items():
                of_current = name_of_current(name)
                results[of_current] = self._evaluated(of_current, epoch, source.batches(epoch))
        if results:
            self.run.reports.evaluated(epoch, results)
        self.run.reports.epoch_done(epoch)
        return results

    def _return_to_best(self, epoch: int) -> None:
        """Load the best model so far before an epoch is trained, if ``use_last_best_model`` says so."""
        run = self.run
        best = best_epoch(run.config, run.learning_rates, run.schedule, epoch)
        if best is None:
            return
        if run.world.is_chief:
            run.saver.wait()
            load_best(run.config, self.trainer, best, epoch)
        self.trainer.ranks.broadcast(self.trainer)

    def _entry_of(self, epoch: int) -> EpochNetwork:
        """Return network and settings of an epoch that begins now; they may depend on what earlier ones wrote."""
        run, planned = self.run, self.schedule.at(epoch)
        if not planned.same_network(run.current.entry):
            run.end_dumps(complete=True)
        entry = run.schedule.renewed(epoch)
        if not entry.same_settings(planned):
            run.data.forget_started()
        return entry

    def _evaluated(self, name: str, epoch: int, batches: Any) -> PassResult:
        """Compute the scores of a dataset.

        :raises Stopped: by a signal; the pass will be repeated
        """
        boundary = self.run.boundary
        result = self.run.current.evaluator.run(
            name,
            epoch,
            boundary.until_signal(batches),
            between=lambda *_: boundary.after_batch(),
            world=self.run.world,
        )
        boundary.after_evaluation()
        return result

    def _complete(self, epoch: int) -> None:
        """Evaluate the loaded epoch, if the run ended between its checkpoint and the end of its evaluation."""
        data = self.learning_rates.epochs.get(epoch)
        if data is None or not any(key.startswith("train_") for key in data.error):
            return
        names = self.run.data.evaluated
        if not all(any(key.startswith(name + "_score") for key in data.error) for name in names):
            self.evaluate(epoch)

    def _save(self, epoch: int, *, last: bool) -> None:
        """Write the checkpoint of an epoch; 0: that of the initial model."""
        pretrain = self.schedule.at(max(epoch, 1)).pretrain
        self.run.saver.save(self.trainer, epoch, self.learning_rates.epochs, last=last, pretrain=pretrain)

    def _end_after(self, epoch: int) -> str:
        """Notify callbacks of a finished epoch; return why training is to end, as all processes agree, or ""."""
        callbacks = self.run.callbacks
        if not callbacks:
            return ""
        reason = callbacks.epoch_end(self.trainer, epoch, self.learning_rates.epochs)
        return next((each for each in self.run.world.gather(reason or self.run.boundary.requested) if each), "")

    def _end_early(self, reason: str) -> None:
        self.ended_early = "Training ends early: %s." % reason
        log.write(1, self.ended_early)
        self.run.callbacks.train_end(reason)

    def _log_unapplied(self) -> None:
        """Log gradients that were accumulated in the last steps, but not applied."""
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
