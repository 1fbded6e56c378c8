"""The training of a config: epochs of steps, scores on further datasets, learning rates and checkpoints."""

from __future__ import annotations

import time
from typing import Any, Dict, List

from returnn_tf.config import ConfigError
from returnn_tf.engine import devices, model_dir, preload
from returnn_tf.engine.data_source import DataSource, evaluation_sources
from returnn_tf.engine.epoch_pass import Pass, PassResult
from returnn_tf.engine.evaluator import Evaluator, normalized_losses
from returnn_tf.engine.learning_rate import LearningRateControl
from returnn_tf.engine.nonfinite import NonFiniteError, first_bad_layer
from returnn_tf.engine.saver import Saver, restore
from returnn_tf.engine.step_result import StepResult
from returnn_tf.engine.summaries import Summaries
from returnn_tf.engine.trainer import Trainer
from returnn_tf.log import epoch_line, eval_line, log, phase_text, start_line
from returnn_tf.network.lower import needed_extern_keys
from returnn_tf.network.network import Network, plan_from_config

_DEFAULT_EPOCHS = 5
_NOT_YET = ("pretrain", "get_network", "use_last_best_model")


class Engine:
    """Everything a training needs, set up from a config; :meth:`train` does it. Use it as a context manager."""

    def __init__(self, config: Any) -> None:
        """
        :param config: Config
        :raises ConfigError: something in the config is wrong; nothing was written
        :raises DataError: a data file or checkpoint is wrong
        """
        _check_supported(config)
        self.config = config
        self.last_epoch = max(_num_epochs(config), config.int("load_epoch", 0))
        plan = plan_from_config(config, train=True)
        if not plan.losses:
            raise ConfigError("The network has no loss, so there is nothing to train. Give a layer the option 'loss'.")
        keys = needed_extern_keys(plan, plan.roots(), True)
        needed = {key: plan.extern_data[key] for key in keys}
        self._train_source = DataSource(config, "train", needed)
        self._sources: Dict[str, DataSource] = evaluation_sources(config, needed)
        self.learning_rates = LearningRateControl.from_config(config)
        self.summaries = Summaries.from_config(config)
        choice = model_dir.choose_whole(config, _report_defect)
        self.first_epoch = choice.start_epoch
        try:
            if self.first_epoch <= self.last_epoch:
                self._train_source.start(self.first_epoch)  # meanwhile the network is built
            devices.set_up(config)
            self.net = Network(plan, seed=config.int("random_seed", 42) or 42)
            self.trainer = Trainer(self.net, config)
            self.evaluator = Evaluator(self.net, config)
            self.saver = Saver(config)
            self.learning_rates.prepare()
            self.summaries.prepare()
            if choice.path is not None:
                restore(self.trainer, choice)
            preload.load(config, self.net.params, train=True, fresh=self.first_epoch == 1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends loading processes and completes event files."""
        for source in [self._train_source] + list(self._sources.values()):
            source.close()
        self.summaries.close()

    def train(self) -> None:
        """All epochs which are still to be done.

        :raises NonFiniteError: loss or gradient became NaN or Inf; the last checkpoint is from before
        """
        if self.first_epoch > self.last_epoch:
            log.write(1, "All %i epochs are done already; nothing to train." % self.last_epoch)
        self._complete(self.first_epoch - 1)
        if self.first_epoch == 1 and self.config.bool("save_epoch1_initial_model", False):
            self.saver.save(self.trainer, 0, last=True)
        for epoch in range(self.first_epoch, self.last_epoch + 1):
            self.train_epoch(epoch)

    def train_epoch(self, epoch: int) -> None:
        """One epoch: steps, checkpoint, scores, clean up."""
        for source in self._sources.values():
            source.start(epoch)  # ready when the steps are done
        rate = self.learning_rates.learning_rate(epoch)
        phase = phase_text("train", epoch)
        log.write(3, start_line(phase, rate))
        first_step = self.trainer.step_count
        start = time.monotonic()
        result = self._pass(phase, rate).run(self._train_source.batches(epoch))
        elapsed = time.monotonic() - start
        log.write(3, "%s, %s" % (phase, self._speed(result)))
        log.write(1, epoch_line(epoch, result.scores, result.errors, elapsed))
        errors: Dict[str, Any] = {"train_score": result.scores, "train_error": result.errors}
        errors.update(
            {
                ":meta:effective_learning_rate": rate,
                ":meta:epoch_num_train_steps": result.steps,
                ":meta:epoch_train_time_secs": int(round(elapsed)),
                ":meta:global_train_step": first_step,
            }
        )
        self.learning_rates.set_errors(epoch, _without_empty(errors))
        last = epoch == self.last_epoch
        if not last:
            self._train_source.start(epoch + 1)
        self.saver.save(self.trainer, epoch, last=last)
        self.summaries.epoch("train", epoch, {**result.scores, **result.errors, "learning_rate": rate})
        self.evaluate(epoch)
        self.saver.clean_up(self.learning_rates.epochs)

    def evaluate(self, epoch: int) -> Dict[str, PassResult]:
        """Scores of all evaluation datasets with the current parameters; they go to the learning-rate control too."""
        results = {
            name: self.evaluator.run(name, epoch, source.batches(epoch)) for name, source in self._sources.items()
        }
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
        done = [name for name in self._sources if any(key.startswith(name + "_score") for key in data.error)]
        if len(done) < len(self._sources):
            self.evaluate(epoch)

    def _pass(self, phase: str, rate: float) -> Pass:
        return Pass(
            phase=phase,
            convert=self.trainer.tensors,
            step=lambda tensors, batch: self._step(tensors, batch, rate),
            normalized=normalized_losses(self.net),
            with_exp=self.config.bool("calculate_exp_loss", False),
            shares_level=3,
            log_batch_size=self.config.bool("log_batch_size", False),
            on_step=lambda batch, result: self.summaries.step(result),
        )

    def _step(self, tensors: Any, batch: Any, rate: float) -> StepResult:
        try:
            result = self.trainer.step(tensors, rate)
        except NonFiniteError as exc:
            raise exc.at(batch.seq_tags, first_bad_layer(self.net, tensors, step=exc.step)) from None
        if not result.finite:
            tags = ", ".join(batch.seq_tags)
            log.warn("Step %s: loss or gradient is not finite, left out. Sequences: %s" % (result.step, tags))
        return result

    def _speed(self, result: PassResult) -> str:
        rate = result.frames / result.seconds if result.seconds else 0.0
        return "%.0f frames/s, memory %s" % (rate, devices.memory_text())


def _num_epochs(config: Any) -> int:
    number = config.int("num_epochs", _DEFAULT_EPOCHS)
    if number < 1:
        raise ConfigError("%s: at least one epoch is needed, got %d." % (config.where("num_epochs"), number))
    return int(number)


def _report_defect(path: str, reason: str) -> None:
    log.warn("The checkpoint %s is not used: %s. The one before is taken." % (path, reason))


def _without_empty(errors: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in errors.items() if value or not isinstance(value, dict)}


def _check_supported(config: Any) -> None:
    given: List[str] = [key for key in _NOT_YET if config.typed(key, None)]
    if given:
        raise ConfigError("Not supported: %s. Remove it to train without." % ", ".join(given))
