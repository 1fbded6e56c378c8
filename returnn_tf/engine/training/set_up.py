"""Set-up of a training: from a config to a `TrainingRun`, whose components are open, checked and loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.settings import check_settings
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.settings.update import BOTH
from returnn_tf.engine.checkpoints import meta_graphs
from returnn_tf.engine.checkpoints.lock import ModelLock
from returnn_tf.engine.checkpoints.meta_graphs import BuildGraph
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.checkpoints.shares import Shares
from returnn_tf.engine.data.augmented import check_lengths_kept
from returnn_tf.engine.data.training_data import TrainingData
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.learning_rate.file import EpochData, scores_of
from returnn_tf.engine.monitoring import run_settings
from returnn_tf.engine.monitoring.reports import Reports
from returnn_tf.engine.monitoring.run_status import RunStatus
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.checks import Planned, needed_data, planned_networks
from returnn_tf.engine.pretrain.current_network import CurrentNetwork
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.support import devices
from returnn_tf.engine.support.product_speed import report_speed
from returnn_tf.engine.support.signals import StopRequest
from returnn_tf.engine.support.time_limit import TimeLimit, end_of_job
from returnn_tf.engine.training.auto_batch import keep, with_known_batches
from returnn_tf.engine.training.callbacks import Callbacks, callbacks_of, score_names
from returnn_tf.engine.training.resume_point import ResumePoint
from returnn_tf.engine.training.step_boundary import StepBoundary
from returnn_tf.engine.update.averages import name_of_current, options_of
from returnn_tf.logging.log import log
from returnn_tf.util.temporary import remove_all


@dataclass(frozen=True)
class HandedOverState:
    """State of a process that has trained before, in which a training continues.

    :param trainer: whose network is trained
    :param epochs: those that it has trained, unless a checkpoint says otherwise
    :param callbacks: further ones than those of the config
    """

    trainer: Optional[StepTrainer] = None
    epochs: Mapping[int, EpochData] = field(default_factory=dict)
    callbacks: Callbacks = field(default_factory=Callbacks)


@dataclass(frozen=True)
class TrainingRun:
    """Components of a training.

    :param world: the processes which train together
    :param schedule: network and settings of each epoch
    :param resume: where training starts
    :param reports: learning rates and scores, event files, traces
    :param current: network, trainer and evaluator of the current epoch
    :param status: the file that ``returnn-tf status`` reads
    :param boundary: what happens between two steps: mid-epoch checkpoints, stopping
    :param resources: what `close` releases
    """

    config: Config
    world: World
    callbacks: Callbacks
    schedule: NetworkSchedule
    resume: ResumePoint
    last_epoch: int
    data: TrainingData
    reports: Reports
    current: CurrentNetwork
    saver: Saver
    status: RunStatus
    boundary: StepBoundary
    resources: contextlib.ExitStack

    @property
    def learning_rates(self) -> LearningRateControl:
        """Return the learning-rate control, with the scores of all epochs."""
        return self.reports.learning_rates

    def close(self) -> None:
        """Wait for checkpoints being written, end loading processes and complete event files.

        :raises DataError: a checkpoint can't be written
        """
        self.resources.close()

    def end_dumps(self, *, complete: bool) -> None:
        """Complete or discard the files of layers such as hdf_dump.

        :raises DataError: one can't be written
        """
        sinks = self.current.net.sinks
        if complete:
            sinks.close()
        else:
            sinks.abort()

    def expect_graphs(self) -> None:
        """Schedule the files ``.meta`` that an earlier run was killed before writing beside its checkpoints."""
        if self.saver.graphs.wanted:
            lacking = meta_graphs.lacking(find_checkpoints(str(self.saver.model)))
            same = [
                lacking[epoch] for epoch in lacking if self.schedule.at(max(epoch, 1)).same_network(self.current.entry)
            ]
            self.saver.graphs.expect(self.current.net.plan, self.current.net.config, same)

    def end_graphs(self, *, complete: bool) -> None:
        """Complete the files ``.meta``, or stop building them."""
        if complete:
            self.saver.graphs.finish()
        else:
            self.saver.graphs.cancel()


def set_up(
    config: Config,
    stop: StopRequest,
    world: World,
    build_graph: Optional[BuildGraph] = None,
    handed_over: Optional[HandedOverState] = None,
) -> TrainingRun:
    """Make the components of a training.

    The order is a contract: mistakes are found before anything takes long, and before anything is written or deleted.

    :param stop: whether a signal requests a stop
    :param world: the processes which train together
    :param build_graph: makes the files ``.meta`` beside the checkpoints
    :param handed_over: what this process has trained before
    :raises ConfigError: something in the config is wrong, or another run trains the model; nothing was written
    :raises DataError: a data file or checkpoint is wrong
    """
    check_settings(config)
    before = HandedOverState() if handed_over is None else handed_over
    callbacks = before.callbacks + callbacks_of(config)
    with contextlib.ExitStack() as resources:
        # without a folder there is nothing to lock yet; otherwise before its checkpoints are looked at
        lock = ModelLock(written_model(config), wanted=world.is_chief)
        lock.acquire()
        resources.callback(lock.release)
        stop.on_abort += [remove_all, lock.release]
        world.on_abort += [remove_all, lock.release]

        given = config
        config, trials = with_known_batches(given, world)
        last_epoch = max(TrainingSettings(config).num_epochs, CheckpointSettings(config).load_epoch or 0)
        schedule = NetworkSchedule(config)
        resume = ResumePoint(config, world, max(before.epochs, default=0))
        planned = _planned(schedule, resume, last_epoch, world)

        data = TrainingData(lambda epoch: schedule.at(epoch).config, resume.loaded, needed_data(planned), world)
        resources.callback(data.close)
        check_lengths_kept(data.datasets()["train"], [plan for _, plan in planned])
        for entry, _ in planned:
            data.check(entry.config)

        reports = Reports(config, world)
        resources.callback(reports.close)
        resume.restore_rates(reports.learning_rates)
        reports.learning_rates.add_epochs(before.epochs)
        _check_scores(callbacks, data, planned, reports.learning_rates)

        batch_table = None
        if trials is not None:
            config, batch_table = trials.run(data.datasets()["train"])
            schedule = NetworkSchedule(config)
        resume.begin(config, schedule)
        resume.check_data(data)

        if resume.epoch <= last_epoch:  # another process loads the first batches while the network is built
            data.start(resume.epoch, **resume.position(resume.epoch))
        current = CurrentNetwork(given, world, before.trainer)  # code of the config reads its settings there
        resources.callback(current.close)
        devices.set_up(config)
        current.begin(schedule.at(resume.loaded), planned[0][1])  # TensorFlow is loaded here
        report_speed(config)

        lock.acquire(make_folder=True)  # before the saver removes leftovers of killed runs
        in_memory = before.trainer is not None
        saver = Saver(
            config, writes=world.is_chief, shares=_shares(config, world), build_graph=build_graph,
            stays_in_memory=in_memory,
        )  # fmt: skip
        resources.callback(saver.close)
        status = RunStatus(config, world, stop)
        resources.enter_context(status.recording_failure())
        boundary = StepBoundary(
            saver, stop, lock, world, _time_limit(config),
            start_epoch_fixed=TrainingSettings(config).start_epoch != "auto",
        )  # fmt: skip
        reports.prepare()
        keep(batch_table, config, world)
        facts = run_settings.facts_of(config, schedule.at(max(last_epoch, 1)).layers) if world.is_chief else {}
        if world.is_chief:
            run_settings.write(written_model(config), facts)

        resume.load(current)
        _warn_of_dumps(resume, current)
        resume.check_ranks(data, current)
        reports.begin(written_model(config), facts, resumed=resume.epoch > 1 or resume.begun is not None)
        return TrainingRun(
            config, world, callbacks, schedule, resume, last_epoch, data, reports, current, saver, status, boundary,
            resources.pop_all(),
        )  # fmt: skip


def _planned(schedule: NetworkSchedule, resume: ResumePoint, last_epoch: int, world: World) -> Planned:
    """Plan the networks of all remaining epochs, so that late mistakes show now. Quick: no TensorFlow."""
    planned = planned_networks(schedule, resume.loaded, max(last_epoch, resume.loaded))
    if world.is_chief:  # the ranks have the same networks
        for note in dict.fromkeys(note for _, plan in planned for note in plan.mistakes):
            log.warn(note)
    return planned


def _check_scores(callbacks: Callbacks, data: TrainingData, planned: Planned, rates: LearningRateControl) -> None:
    """Check that the scores which callbacks look at will be there.

    :raises ConfigError: one will not
    """
    both = options_of(planned[0][0].config).evaluate == BOTH
    current = [name_of_current(name) for name in data.evaluated] if both else []
    names = score_names(["train", *data.evaluated, *current], planned)
    past = {name for epoch in rates.epochs.values() for name in scores_of(epoch.error)}
    callbacks.check_scores(None if names is None else names | past)


def _shares(config: Config, world: World) -> Optional[Shares]:
    if world.size == 1 or not CheckpointSettings(config).save_sharded:
        return None
    return Shares(world.rank, world.gather(world.name))


def _time_limit(config: Config) -> TimeLimit:
    settings = TrainingSettings(config)
    end = end_of_job(os.environ) if settings.stop_for_resubmission_when_low_time_left else None
    return TimeLimit(end, settings.stop_for_resubmission_when_low_time_left_safety_factor)


def _warn_of_dumps(resume: ResumePoint, current: CurrentNetwork) -> None:
    """Log which layers' files will lack what an earlier run did."""
    if resume.epoch > 1 or resume.begun is not None:
        for path in current.net.sinks.of_all_passes():
            log.write(
                2,
                "Layer %r: its file will lack what was done before this start in epoch %d. With dump_per_run each "
                "pass has a file of its own." % (path, resume.epoch),
            )
