"""Records of the epochs of a training run: learning rates and scores, event files, traces of some steps."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.learning_rate.file import best_epochs
from returnn_tf.engine.monitoring.loss_watch import LossWatch
from returnn_tf.engine.monitoring.profiling import Profiler
from returnn_tf.engine.monitoring.summaries import Summaries, values_of_step
from returnn_tf.engine.monitoring.trackers.base import RunFacts
from returnn_tf.engine.monitoring.tracking import Tracking, trackers_of
from returnn_tf.engine.passes.scored_pass import PassResult
from returnn_tf.engine.support import devices
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.logging.lines import best_line, epoch_line, eval_line, speed_line
from returnn_tf.logging.log import log
from returnn_tf.logging.text import date_text


class Reports:
    """The files with the results of training; with several processes, only the chief writes them.

    :raises ConfigError: wrong options
    :raises DataError: the learning-rate file is damaged
    """

    def __init__(self, config: Config, world: World) -> None:
        self.learning_rates = LearningRateControl.from_config(config)
        self.summaries = Summaries.from_config(config)
        self.watch = LossWatch()
        self._rates: list[float] = []  # of the steps of an epoch: the first, lowest, highest, last
        self.profiler = Profiler.from_config(config, self.summaries.folder)
        if TaskSettings(config).dry_run:
            self.learning_rates.filename = None
        self._is_chief = world.is_chief
        if not world.is_chief:
            self.learning_rates.filename, self.summaries, self.profiler = None, Summaries(None), Profiler(None, None)
        records = world.is_chief and not TaskSettings(config).dry_run
        self._tracking = Tracking(trackers_of(config) if records else {}, written_model(config))
        self._tracking.check(LoggingSettings(config).describe_source("trackers"), self.summaries.folder)

    def prepare(self) -> None:
        """Check that the files can be written.

        :raises ConfigError: one can't be written
        """
        self.learning_rates.prepare()
        self.summaries.prepare()

    def begin(self, model: str, facts: Mapping[str, Any], *, resumed: bool) -> None:
        """Begin the runs of the trackers.

        :param model: path prefix of the checkpoints, or ""
        :param facts: of the run, see `run_settings.facts_of`; empty where no tracker is
        :param resumed: whether an earlier training is resumed
        """
        configs = facts.get("files") or []
        folder = os.path.abspath(os.path.dirname(model))
        name = os.path.basename(os.path.splitext(configs[-1])[0] if configs else folder)

        def of_run(previous: str) -> RunFacts:
            return RunFacts(name, facts["settings"], facts["environment"], self.summaries.folder, previous)

        self._tracking.begin(of_run, resumed=resumed)

    def step(self, net: Network, result: StepResult) -> None:
        """Record a step of training."""
        self.summaries.step(result, net.plan.losses)
        if result.step is not None and result.finite and self._tracking.wants(result.step):
            self._tracking.step(result.step, values_of_step(result, net.plan.losses))
        if result.learning_rate is not None:
            first, low, high, _ = self._rates or [result.learning_rate] * 4
            self._rates = [first, min(low, result.learning_rate), max(high, result.learning_rate), result.learning_rate]
        if self._is_chief:
            self.watch.step(net, result)

    def trained(self, phase: str, epoch: int, rate: float, first_step: int, result: PassResult) -> None:
        """Record that the training steps of an epoch, which began at global step ``first_step``, are done.

        :param rate: of the last step, before ``dynamic_learning_rate``
        """
        facts = ["memory %s" % devices.memory_text(), *self._rates_of_steps(rate), date_text(datetime.datetime.now())]
        times = (result.seconds, result.wait_seconds, result.setup_seconds, result.frames_per_second)
        log.write(3, speed_line(phase, *times, facts))
        log.write(1, epoch_line(epoch, result.scores, result.errors, result.seconds))
        self.watch.look(rate, "after epoch %d" % epoch)
        errors: dict[str, Any] = {"train_score": result.scores, "train_error": result.errors}
        errors.update(
            {
                ":meta:effective_learning_rate": rate,
                ":meta:epoch_num_train_steps": result.steps,
                ":meta:epoch_train_time_secs": round(result.seconds),
                ":meta:global_train_step": first_step,
                **{":meta:speed:%s" % name: value for name, value in result.speed().items()},
            }
        )
        used = devices.memory_bytes()
        errors.update({":meta:memory:%s" % name: value for name, value in used.items()})
        self.learning_rates.set_errors(epoch, _without_empty(errors))
        memory = {"memory/%s" % name: value for name, value in used.items()}
        values = {**result.scores, **result.errors, "learning_rate": rate, **result.times(), **memory}
        self.summaries.epoch("train", epoch, values)

    def evaluated(self, epoch: int, results: Mapping[str, PassResult]) -> None:
        """Record the scores of an epoch on the evaluation datasets, by name; at least one."""
        log.write(1, eval_line({name: (result.scores, result.errors) for name, result in results.items()}))
        errors: dict[str, Any] = {}
        for name, result in results.items():
            errors["%s_score" % name] = result.scores
            errors["%s_error" % name] = result.errors
            self.summaries.epoch(name, epoch, {**result.scores, **result.errors})
        self.learning_rates.set_errors(epoch, _without_empty(errors))
        key = self.learning_rates.error_key(epoch)
        epochs = self.learning_rates.epochs
        values = {} if key is None else {number: epochs[number].error[key] for number in best_epochs(epochs, key)}
        text = best_line(key or "", values, epoch)
        if text:
            log.write(3, text)

    def epoch_done(self, epoch: int) -> None:
        """Pass all that is known of an epoch, which is trained and evaluated, to the trackers."""
        self._tracking.epoch(epoch, self.learning_rates.epochs[epoch])

    def ended(self, error: Optional[BaseException]) -> None:
        """Record the end of training; the error says why it is not finished."""
        self._tracking.end(error)

    def _rates_of_steps(self, rate: float) -> list[str]:
        """Return the rates of the steps, if a schedule or ``dynamic_learning_rate`` changed that of the epoch."""
        found, self._rates = self._rates, []
        if not found or all(math.isclose(each, rate, rel_tol=1e-5) for each in found):
            return []
        first, low, high, last = ("%.3g" % each for each in found)
        ends = first if first == last else "%s to %s" % (first, last)
        beyond = [("at least", low), ("at most", high)]
        between = ", ".join("%s %s" % limit for limit in beyond if limit[1] not in (first, last))
        return ["learning rate of the steps %s%s" % (ends, " (%s)" % between if between else "")]

    def close(self) -> None:
        """Complete the files."""
        try:
            self.profiler.close()
        finally:
            self.summaries.close()


def _without_empty(errors: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in errors.items() if value or not isinstance(value, dict)}
