"""The training of a config: epochs of steps, scores on further datasets, learning rates and checkpoints."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Dict, List, Optional

from returnn_tf.config import ConfigError, DataError
from returnn_tf.engine.checkpoints.lock import ModelLock
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.data.training_data import TrainingData
from returnn_tf.engine.distributed import world
from returnn_tf.engine.distributed.blame import blame
from returnn_tf.engine.monitoring import reproducer
from returnn_tf.engine.monitoring.reports import Reports
from returnn_tf.engine.monitoring.run_status import RunStatus
from returnn_tf.engine.passes.evaluator import Evaluator, normalized_losses
from returnn_tf.engine.passes.progress import PassState, Progress, Sums, data_settings
from returnn_tf.engine.passes.scored_pass import PassResult, ScoredPass
from returnn_tf.engine.passes.trainer import Trainer
from returnn_tf.engine.pretrain.checks import needed_data, planned_networks
from returnn_tf.engine.pretrain.learning_rates import rate_of_epoch
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.pretrain.stage import Stage
from returnn_tf.engine.support import devices
from returnn_tf.engine.support.atomic_files import remove_staged
from returnn_tf.engine.support.nonfinite import NonFiniteError, first_bad_layer
from returnn_tf.engine.support.scores import Scores
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.support.start_epoch import begins_anew
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.engine.training.pauses import Pauses
from returnn_tf.engine.training.start import Start
from returnn_tf.engine.update.update_guard import left_out_text
from returnn_tf.logging.lines import phase_text, start_line
from returnn_tf.logging.log import log
from returnn_tf.network.network import Network

_DEFAULT_EPOCHS = 5
_NOT_YET = ("use_last_best_model",)


class Engine:
    """Everything a training needs, set up from a config; :meth:`train` does it. Use it as a context manager."""

    def __init__(self, config: Any, stop: Optional[StopRequest] = None) -> None:
        """
        :param config: Config
        :param stop: tells whether a signal asks to stop
        :raises ConfigError: something in the config is wrong, or another run trains the model; nothing was written
        :raises DataError: a data file or checkpoint is wrong
        """
        _check_supported(config)
        self.config = config
        self._stop = stop or StopRequest()
        self._resources = contextlib.ExitStack()
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        config = self.config
        self.world = world.from_config(config)
        lock = self._locked()
        self.last_epoch = max(_num_epochs(config), config.int("load_epoch", 0))
        self.schedule = NetworkSchedule(config)
        self._start = Start(config, self.schedule, self.world)
        self.first_epoch = self._start.epoch
        loaded = self._start.loaded
        planned = planned_networks(self.schedule, loaded, max(self.last_epoch, loaded))
        self._data = TrainingData(self._config_of, loaded, needed_data(planned))
        self._resources.callback(self._data.close)
        for entry, _ in planned:
            self._data.check(entry.config)
        self._start.check_data(self._data)
        self._reports = Reports(config, self.world)
        self._resources.callback(self._reports.close)
        self.learning_rates = self._reports.learning_rates
        self._start.restore_rates(self.learning_rates)
        if self.first_epoch <= self.last_epoch:
            self._data.start(self.first_epoch, **self._start.position)  # meanwhile the network is built
        self._stage = Stage(config)
        self._resources.callback(self._stage.close)
        devices.set_up(config)
        self._stage.begin(self.schedule.at(loaded), planned[0][1])
        lock.acquire(make_folder=True)  # before the saver removes what looks like left behind
        self.saver = Saver(config, writes=self.world.is_chief)
        self._resources.callback(self.saver.close)
        self._status = RunStatus(config, self.world, self._stop)
        self._pauses = Pauses(self.saver, self._stop, lock, self.world, begins_anew=begins_anew(config))
        self._reports.prepare()
        self._start.load(self._stage)
        self._start.check_ranks(self._data, self._stage)

    def _locked(self) -> ModelLock:
        """The lock on the model, held already if there is a folder for it."""
        lock = ModelLock(self.config.str("model", "") or "", wanted=self.world.is_chief)
        lock.acquire()
        self._resources.callback(lock.release)
        self._stop.on_abort += [remove_staged, lock.release]
        self.world.on_abort += [remove_staged, lock.release]
        return lock

    @property
    def net(self) -> Network:
        """The network which is trained now."""
        return self._stage.net

    @property
    def trainer(self) -> Trainer:
        """What trains it."""
        return self._stage.trainer

    @property
    def evaluator(self) -> Evaluator:
        """What gives its scores without training."""
        return self._stage.evaluator

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._status.ended(error)
            self.close()
        except DataError as exc:
            if kind is None:
                raise
            log.warn(str(exc))  # what ended the training matters more

    def close(self) -> None:
        """Waits for checkpoints which are being written, ends loading processes and completes event files.

        :raises DataError: a checkpoint can't be written
        """
        self._resources.close()

    def train(self) -> None:
        """All epochs which are still to be done.

        :raises NonFiniteError: loss or gradient became NaN or Inf; the last checkpoint is from before
        """
        self._status.begin(self.last_epoch, self.learning_rates.filename)
        if self.first_epoch > self.last_epoch:
            log.write(1, "All %i epochs are done already; nothing to train." % self.last_epoch)
        if self._start.begun is None:
            self._complete(self.first_epoch - 1)
            if self.first_epoch == 1 and self.config.bool("save_epoch1_initial_model", False):
                pretrain = self.schedule.at(1).pretrain
                self.saver.save(self.trainer, 0, self.learning_rates.epochs, last=True, pretrain=pretrain)
        for epoch in range(self.first_epoch, self.last_epoch + 1):
            self.train_epoch(epoch)
        self.saver.finish()

    def train_epoch(self, epoch: int) -> None:
        """One epoch, or what is left of it: steps, checkpoint, scores, clean up."""
        entry = self.schedule.at(epoch)
        if self._stage.enter(entry):
            self.trainer.ranks.broadcast(self.trainer)
        begun, position = self._start.done, self._start.position
        first_step = self._start.begun.first_step if self._start.begun else self.trainer.step_count
        progress = Progress(epoch, first_step, shared=position["shared"])
        self._start.begun = None
        batches = self._data.train_batches(epoch, **position)
        self._data.start_evaluated(epoch)  # ready when the steps are done
        rate = rate_of_epoch(self.learning_rates, entry, epoch)
        phase = phase_text("train", epoch, pretrain=entry.pretrain)
        log.write(3, start_line(phase, rate))
        result = self._pass(phase, progress, begun, rate).run(batches, begun)
        self.trainer.ranks.same_everywhere(self.trainer)
        self.trainer.ranks.check_same(self.trainer, phase)
        self._reports.trained(phase, epoch, rate, first_step, result)
        self._status.trained(result)
        last = epoch == self.last_epoch
        if not last:
            self._data.start(epoch + 1)
        self.saver.save(self.trainer, epoch, self.learning_rates.epochs, last=last, pretrain=entry.pretrain)
        try:
            self.evaluate(epoch)
            self._pauses.after_evaluation()
        except Stopped:
            if not (last or self.saver.has(epoch)):
                self._save_within(progress, result)
            self.saver.wait()
            raise
        self.saver.clean_up(self.learning_rates.epochs, epoch)

    def evaluate(self, epoch: int) -> Dict[str, PassResult]:
        """Scores of all evaluation datasets with the current parameters; they go to the learning-rate control too.

        :raises Stopped: by a signal; nothing of the scores is kept
        """
        results: Dict[str, PassResult] = {}
        for name, source in self._data.evaluated.items():
            batches = self._pauses.until_signal(source.batches(epoch))
            results[name] = self.evaluator.run(
                name, epoch, batches, between=lambda *_: self._pauses.after_batch(), world=self.world
            )
            self._pauses.after_evaluation()
        if results:
            self._reports.evaluated(epoch, results)
        return results

    def _complete(self, epoch: int) -> None:
        """Evaluates the epoch that was loaded, if the run ended between its checkpoint and its evaluation."""
        data = self.learning_rates.epochs.get(epoch)
        if data is None or not any(key.startswith("train_") for key in data.error):
            return
        done = [name for name in self._data.evaluated if any(key.startswith(name + "_score") for key in data.error)]
        if len(done) < len(self._data.evaluated):
            self.evaluate(epoch)

    def _config_of(self, epoch: int) -> Any:
        return self.schedule.at(epoch).config

    def _save_within(self, progress: Progress, done: PassState, sums: Optional[Sums] = None) -> None:
        """Writes a checkpoint from within an epoch.

        :param progress: epoch and step of its begin
        :param done: the pass so far
        :param sums: of the scores so far; by default those in ``done``
        """
        self.trainer.ranks.same_everywhere(self.trainer)
        here = {**asdict(done), "sums": done.sums if sums is None else sums}
        ranks = [PassState.from_json(value) for value in self.world.gather(here)]
        progress = replace(progress, passed=ranks[0], ranks=ranks if len(ranks) > 1 else [])
        progress.data = data_settings(self._config_of(progress.epoch))
        progress.facts = self._data.train_facts(progress.epoch)
        self.saver.save_within(self.trainer, progress, self.learning_rates.epochs)

    def _pass(self, phase: str, progress: Progress, begun: PassState, rate: float) -> ScoredPass:
        ranks, steps = self.trainer.ranks, begun.steps
        self._pauses.begin(ranks.control, lambda: progress.first_step + steps + 1)

        def between(result: PassResult, scores: Scores) -> None:
            nonlocal steps
            steps = result.steps
            self._status.between(progress, result)
            self._pauses.after_step(lambda: self._save_within(progress, result, scores.sums()))

        return ScoredPass(
            phase=phase,
            convert=self.trainer.tensors,
            step=lambda tensors, batch: self._step(tensors, batch, progress.epoch, rate),
            normalized=normalized_losses(self.net),
            with_exp=self._stage.entry.config.bool("calculate_exp_loss", False),
            shares_level=3,
            log_batch_size=self._stage.entry.config.bool("log_batch_size", False),
            on_step=self._after_step,
            between=between,
            world=self.world,
            join=lambda batches: ranks.take_part(batches, lambda: self._any_tensors(progress.epoch)),
            common_sums=ranks.in_step,
        )

    def _any_tensors(self, epoch: int) -> Any:
        return self.trainer.tensors(self._data.any_train_batch(epoch).feed)

    def _after_step(self, batch: Any, result: StepResult) -> None:
        self._status.step(batch, result.total_loss)
        self._reports.summaries.step(result)

    def _step(self, tensors: Any, batch: Any, epoch: int, rate: float) -> StepResult:
        with reproducer.kept(self.config, self.trainer, epoch, tensors, batch.seq_tags):
            try:
                with self._reports.profiler.step():
                    result = self.trainer.step(tensors, rate)
            except NonFiniteError as exc:
                find = partial(first_bad_layer, self.net, tensors, step=exc.step)
                raise blame(self.world, exc, batch.seq_tags, find) from None
        if result.spike or not result.updated:
            log.warn("%s. Sequences: %s" % (left_out_text(result), ", ".join(batch.seq_tags)))
        return result


def _num_epochs(config: Any) -> int:
    number = config.int("num_epochs", _DEFAULT_EPOCHS)
    if number < 1:
        raise ConfigError("%s: at least one epoch is needed, got %d." % (config.where("num_epochs"), number))
    return int(number)


def _check_supported(config: Any) -> None:
    given: List[str] = [key for key in _NOT_YET if config.typed(key, None)]
    if given:
        raise ConfigError("Not supported: %s. Remove it to train without." % ", ".join(given))
