"""The training of a config: epochs of steps, scores on further datasets, learning rates and checkpoints."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Dict, List, Optional, Sequence

from returnn_tf.config import ConfigError, DataError
from returnn_tf.engine import devices, model_dir, preload, reproducer, world
from returnn_tf.engine.checkpoint_files import remove_staged
from returnn_tf.engine.data_facts import data_facts
from returnn_tf.engine.epoch_pass import Pass, PassResult
from returnn_tf.engine.evaluator import Evaluator, normalized_losses
from returnn_tf.engine.fingerprint import settings
from returnn_tf.engine.horovod import start_checks
from returnn_tf.engine.horovod.blame import blame
from returnn_tf.engine.horovod.options import GRAD, HorovodOptions
from returnn_tf.engine.learning_rate import LearningRateControl
from returnn_tf.engine.load_model import report_defect
from returnn_tf.engine.model_lock import ModelLock
from returnn_tf.engine.model_selection import ModelChoice
from returnn_tf.engine.nonfinite import NonFiniteError, first_bad_layer
from returnn_tf.engine.pauses import Pauses
from returnn_tf.engine.pretrain.checks import planned_networks
from returnn_tf.engine.pretrain.learning_rates import rate_of_epoch
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.pretrain.stage import Stage
from returnn_tf.engine.profiling import Profiler
from returnn_tf.engine.progress import PassState, Progress, Sums, data_settings
from returnn_tf.engine.restoring import Resumption, restore
from returnn_tf.engine.run_status import RunStatus
from returnn_tf.engine.saver import Saver
from returnn_tf.engine.scores import Scores
from returnn_tf.engine.signals import Stopped, StopRequest
from returnn_tf.engine.step_result import StepResult
from returnn_tf.engine.summaries import Summaries
from returnn_tf.engine.trainer import Trainer
from returnn_tf.engine.training_data import TrainingData
from returnn_tf.engine.update_guard import left_out_text
from returnn_tf.log import epoch_line, eval_line, log, phase_text, start_line
from returnn_tf.network.lower import needed_extern_keys
from returnn_tf.network.network import Network
from returnn_tf.network.plan import Plan
from returnn_tf.tensor import Data

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
        choice = model_dir.choose_whole(config, report_defect)
        left_behind = model_dir.tell_left_behind(config, choice)
        if left_behind is not None and self.world.is_chief:
            log.warn(left_behind)
        self.first_epoch = choice.start_epoch
        resumption = Resumption(config, choice)
        resumption.tell_changes(settings(config))
        loaded = max(choice.epoch or 0, 1)  # the epoch whose network the first values belong to
        self._begun = resumption.progress(data_settings(self._config_of(loaded)))
        if self._begun is not None:
            common = HorovodOptions.from_config(config).reduce_type == GRAD
            self._begun = self._begun.for_ranks(self.world.size, common=common)
        planned = planned_networks(self.schedule, loaded, max(self.last_epoch, loaded))
        self._data = TrainingData(self._config_of, loaded, _needed_data([plan for _, plan in planned]))
        self._resources.callback(self._data.close)
        for entry, _ in planned:
            self._data.check(entry.config)
        if self._begun is not None and (self._data.shared or self.world.is_chief):
            # where each process has data of its own, the checkpoint tells of the chief's
            resumption.check_data(self._begun, self._data.train_facts(self.first_epoch))
        self._set_up_reports()
        resumption.restore_rates(self.learning_rates)
        if self.first_epoch <= self.last_epoch:
            self._data.start(self.first_epoch, **self._position())  # meanwhile the network is built
        self._stage = Stage(config)
        self._resources.callback(self._stage.close)
        devices.set_up(config)
        self._stage.begin(self.schedule.at(loaded), planned[0][1])
        lock.acquire(make_folder=True)  # before the saver removes what looks like left behind
        self.saver = Saver(config, writes=self.world.is_chief)
        self._resources.callback(self.saver.close)
        self._status = RunStatus(config, self.world, self._stop)
        self._pauses = Pauses(self.saver, self._stop, lock, self.world)
        self.learning_rates.prepare()
        self.summaries.prepare()
        self._load(choice)
        self._check_ranks()

    def _check_ranks(self) -> None:
        """All processes are about to do the same, and begin with the same parameters.

        :raises ConfigError: they are not
        """
        if self.world.size == 1:
            return
        own = start_checks.OWN_KEYS | (frozenset() if self._data.shared else start_checks.OWN_DATA_KEYS)
        facts = {"settings": {key: text for key, text in settings(self.config).items() if key not in own}}
        facts["network"] = start_checks.network_facts(self.net, self._stage.entry.layers)
        facts["start"] = {"epoch": str(self.first_epoch), "step": str(self.trainer.step_count)}
        for name, dataset in self._data.datasets(shared=True).items():
            facts["data of %r" % name] = data_facts(dataset, self.first_epoch)
        start_checks.check_same(self.world, facts)
        self.trainer.ranks.broadcast(self.trainer)
        log.write(3, "%d processes train together: %s" % (self.world.size, self.world.name))

    def _locked(self) -> ModelLock:
        """The lock on the model, held already if there is a folder for it."""
        lock = ModelLock(self.config.str("model", "") or "", wanted=self.world.is_chief)
        lock.acquire()
        self._resources.callback(lock.release)
        self._stop.on_abort += [remove_staged, lock.release]
        self.world.on_abort += [remove_staged, lock.release]
        return lock

    def _set_up_reports(self) -> None:
        self.learning_rates = LearningRateControl.from_config(self.config)
        self.summaries = Summaries.from_config(self.config)
        self._profiler = Profiler.from_config(self.config, self.summaries.folder)
        if not self.world.is_chief:
            self.learning_rates.filename, self.summaries, self._profiler = None, Summaries(None), Profiler(None, None)
        self._resources.callback(self.summaries.close)
        self._resources.callback(self._profiler.close)

    def _load(self, choice: ModelChoice) -> None:
        if choice.path is not None:
            restore(self.trainer, choice)
        else:
            preload.load_on_init(self.net.plan, self.net.params)
        preload.load(self.config, self.net.params, train=True, fresh=self.first_epoch == 1 and self._begun is None)

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

    def __enter__(self) -> "Engine":
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
        if self._begun is None:
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
        begun, position = self._begun_pass(), self._position()
        first_step = self._begun.first_step if self._begun else self.trainer.step_count
        progress = Progress(epoch, first_step, shared=position["shared"])
        self._begun = None
        batches = self._data.train_batches(epoch, **position)
        self._data.start_evaluated(epoch)  # ready when the steps are done
        rate = rate_of_epoch(self.learning_rates, entry, epoch)
        phase = phase_text("train", epoch, pretrain=entry.pretrain)
        log.write(3, start_line(phase, rate))
        result = self._pass(phase, progress, begun, rate).run(batches, begun)
        self.trainer.ranks.same_everywhere(self.trainer)
        self.trainer.ranks.check_same(self.trainer, phase)
        log.write(3, "%s, %s" % (phase, self._speed(result)))
        log.write(1, epoch_line(epoch, result.scores, result.errors, result.seconds))
        self._note_trained(epoch, rate, first_step, result)
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

    def _note_trained(self, epoch: int, rate: float, first_step: int, result: PassResult) -> None:
        """Scores and other facts of an epoch go to the learning-rate file and the event files."""
        errors: Dict[str, Any] = {"train_score": result.scores, "train_error": result.errors}
        errors.update(
            {
                ":meta:effective_learning_rate": rate,
                ":meta:epoch_num_train_steps": result.steps,
                ":meta:epoch_train_time_secs": int(round(result.seconds)),
                ":meta:global_train_step": first_step,
            }
        )
        self.learning_rates.set_errors(epoch, _without_empty(errors))
        self._status.trained(result)
        memory = {"memory/%s" % name: value for name, value in devices.memory_bytes().items()}
        values = {**result.scores, **result.errors, "learning_rate": rate, **result.times(), **memory}
        self.summaries.epoch("train", epoch, values)

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
        if not results:
            return {}
        log.write(1, eval_line({name: (result.scores, result.errors) for name, result in results.items()}))
        errors: Dict[str, Any] = {}
        for name, result in results.items():
            errors["%s_score" % name] = result.scores
            errors["%s_error" % name] = result.errors
            self.summaries.epoch(name, epoch, {**result.scores, **result.errors})
        self.learning_rates.set_errors(epoch, _without_empty(errors))
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

    def _begun_pass(self) -> PassState:
        """What this process had done of the epoch with which the training goes on."""
        return PassState() if self._begun is None else self._begun.of_rank(self.world.rank, self.world.size)

    def _position(self) -> Dict[str, Any]:
        """Where the batches of the epoch begin with which the training goes on."""
        shared = [] if self._begun is None else self._begun.shared
        return {"start_batch": self._begun_pass().batches, "shared": shared}

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

    def _pass(self, phase: str, progress: Progress, begun: PassState, rate: float) -> Pass:
        ranks, steps = self.trainer.ranks, begun.steps
        self._pauses.begin(ranks.control, lambda: progress.first_step + steps + 1)

        def between(result: PassResult, scores: Scores) -> None:
            nonlocal steps
            steps = result.steps
            self._status.between(progress, result)
            self._pauses.after_step(lambda: self._save_within(progress, result, scores.sums()))

        return Pass(
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
            together=lambda batches: ranks.take_part(batches, lambda: self._any_tensors(progress.epoch)),
            common_sums=ranks.in_step,
        )

    def _any_tensors(self, epoch: int) -> Any:
        return self.trainer.tensors(self._data.any_train_batch(epoch).feed)

    def _after_step(self, batch: Any, result: StepResult) -> None:
        self._status.step(batch, result.total_loss)
        self.summaries.step(result)

    def _step(self, tensors: Any, batch: Any, epoch: int, rate: float) -> StepResult:
        with reproducer.kept(self.config, self.trainer, epoch, tensors, batch.seq_tags):
            try:
                with self._profiler.step():
                    result = self.trainer.step(tensors, rate)
            except NonFiniteError as exc:
                find = partial(first_bad_layer, self.net, tensors, step=exc.step)
                raise blame(self.world, exc, batch.seq_tags, find) from None
        if result.spike or not result.updated:
            log.warn("%s. Sequences: %s" % (left_out_text(result), ", ".join(batch.seq_tags)))
        return result

    def _speed(self, result: PassResult) -> str:
        rate = result.frames / result.seconds if result.seconds else 0.0
        return "%.0f frames/s, memory %s" % (rate, devices.memory_text())


def _num_epochs(config: Any) -> int:
    number = config.int("num_epochs", _DEFAULT_EPOCHS)
    if number < 1:
        raise ConfigError("%s: at least one epoch is needed, got %d." % (config.where("num_epochs"), number))
    return int(number)


def _needed_data(plans: Sequence[Plan]) -> Dict[str, Data]:
    """The data keys which any of the networks needs, with their declaration."""
    needed: Dict[str, Data] = {}
    for plan in plans:
        for key in needed_extern_keys(plan, plan.roots(), True):
            needed.setdefault(key, plan.extern_data[key])
    return needed


def _without_empty(errors: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in errors.items() if value or not isinstance(value, dict)}


def _check_supported(config: Any) -> None:
    given: List[str] = [key for key in _NOT_YET if config.typed(key, None)]
    if given:
        raise ConfigError("Not supported: %s. Remove it to train without." % ", ".join(given))
