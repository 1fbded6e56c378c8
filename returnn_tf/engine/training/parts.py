"""The components of training, and the order of their set-up."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Callable, Optional

from returnn_tf.config import Config
from returnn_tf.config.settings import check_settings
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints import meta_graphs
from returnn_tf.engine.checkpoints.lock import ModelLock
from returnn_tf.engine.checkpoints.meta_graphs import BuildGraph
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.data.training_data import TrainingData
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.learning_rate.file import EpochData, scores_of
from returnn_tf.engine.monitoring import run_settings
from returnn_tf.engine.monitoring.reports import Reports
from returnn_tf.engine.monitoring.run_status import RunStatus
from returnn_tf.engine.passes.trainer import Trainer
from returnn_tf.engine.pretrain.checks import needed_data, planned_networks
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.pretrain.training_setup import TrainingSetup
from returnn_tf.engine.support import devices
from returnn_tf.engine.support.product_speed import report_speed
from returnn_tf.engine.support.signals import StopRequest
from returnn_tf.engine.support.start_epoch import start_epoch_fixed
from returnn_tf.engine.training.callback_checks import score_names
from returnn_tf.engine.training.callbacks import Callbacks, callbacks_of
from returnn_tf.engine.training.resume_point import ResumePoint
from returnn_tf.engine.training.step_boundary import StepBoundary
from returnn_tf.logging.log import log
from returnn_tf.util.temporary import remove_all


@dataclass(frozen=True)
class Begun:
    """What a process brings into a training.

    :param trainer: whose network is trained
    :param epochs: those that it has trained, unless a checkpoint says otherwise
    :param callbacks: further ones than those of the config
    """

    trainer: Optional[Trainer] = None
    epochs: Mapping[int, EpochData] = field(default_factory=dict)
    callbacks: Callbacks = field(default_factory=Callbacks)


class TrainingParts:
    """Components of training, made from a config in stages; `close` releases them.

    :param stop: whether a signal requests a stop
    :param world: the processes which train together
    :param build_graph: makes the files ``.meta`` beside the checkpoints
    :param begun: what this process has trained before
    :raises ConfigError: something in the config is wrong, or another run trains the model; nothing was written
    :raises DataError: a data file or checkpoint is wrong
    """

    def __init__(
        self,
        config: Config,
        stop: StopRequest,
        world: World,
        build_graph: Optional[BuildGraph] = None,
        begun: Optional[Begun] = None,
    ) -> None:
        check_settings(config)
        self._build_graph = build_graph
        self._begun = Begun() if begun is None else begun
        self.callbacks = self._begun.callbacks + callbacks_of(config)
        self.config = config
        self.world = world
        self._stop = stop
        self._resources = contextlib.ExitStack()
        self._tell_end: Callable[[BaseException], None] = lambda exc: None  # until the status file is begun
        try:
            self._set_up()
        except BaseException as exc:
            self._tell_end(exc)
            self.close()
            raise

    def close(self) -> None:
        """Wait for checkpoints being written, end loading processes and complete event files.

        :raises DataError: a checkpoint can't be written
        """
        self._resources.close()

    def end_dumps(self, *, complete: bool) -> None:
        """Complete or discard the files of layers such as hdf_dump.

        :raises DataError: one can't be written
        """
        sinks = self.setup.net.sinks
        if complete:
            sinks.close()
        else:
            sinks.abort()

    def expect_graphs(self) -> None:
        """Let the files ``.meta`` be written beside checkpoints of an earlier run, which was killed before it did."""
        if self.saver.graphs.wanted:
            lacking = meta_graphs.lacking(find_checkpoints(str(self.saver.model)))
            same = [
                lacking[epoch] for epoch in lacking if self.schedule.at(max(epoch, 1)).same_network(self.setup.entry)
            ]
            self.saver.graphs.expect(self.setup.net.plan, same)

    def end_graphs(self, *, complete: bool) -> None:
        """Complete the files ``.meta``, or stop building them."""
        if complete:
            self.saver.graphs.finish()
        else:
            self.saver.graphs.cancel()

    def config_of(self, epoch: int) -> Config:
        """Return the config with the settings of an epoch."""
        return self.schedule.at(epoch).config

    def _set_up(self) -> None:
        """Run the stages of the set-up. Their order is a contract: each needs the results of earlier ones.

        Mistakes are found before anything takes long, and before anything is written or deleted.
        """
        for stage in (
            self._lock_existing_model,
            self._find_start,
            self._plan_networks,
            self._open_data,
            self._read_learning_rates,
            self._check_callbacks,
            self._load_ahead,
            self._build_network,
            self._take_model,
            self._open_outputs,
            self._load_parameters,
        ):
            stage()

    def _lock_existing_model(self) -> None:
        """Lock the model before its checkpoints are looked at; without a folder there is nothing to lock yet."""
        self._lock = ModelLock(written_model(self.config), wanted=self.world.is_chief)
        self._lock.acquire()
        self._resources.callback(self._lock.release)
        self._stop.on_abort += [remove_all, self._lock.release]
        self.world.on_abort += [remove_all, self._lock.release]

    def _find_start(self) -> None:
        """Find the epoch to start with, the checkpoint to load, and the networks by epoch."""
        epochs = TrainingSettings(self.config).num_epochs
        self.last_epoch = max(epochs, CheckpointSettings(self.config).load_epoch or 0)
        self.schedule = NetworkSchedule(self.config)
        self.resume = ResumePoint(self.config, self.schedule, self.world, max(self._begun.epochs, default=0))
        self.first_epoch = self.resume.epoch

    def _plan_networks(self) -> None:
        """Plan the networks of all remaining epochs, so that late mistakes show now. Quick: no TensorFlow."""
        loaded = self.resume.loaded
        self._planned = planned_networks(self.schedule, loaded, max(self.last_epoch, loaded))
        if self.world.is_chief:  # the ranks have the same networks
            for note in dict.fromkeys(note for _, plan in self._planned for note in plan.mistakes):
                log.warn(note)

    def _open_data(self) -> None:
        """Open the datasets, and check that they provide what the planned networks need."""
        self.data = TrainingData(self.config_of, self.resume.loaded, needed_data(self._planned), self.world)
        self._resources.callback(self.data.close)
        for entry, _ in self._planned:
            self.data.check(entry.config)
        self.resume.check_data(self.data)

    def _read_learning_rates(self) -> None:
        """Read the learning-rate file, and add what only the checkpoint has."""
        self.reports = Reports(self.config, self.world)
        self._resources.callback(self.reports.close)
        self.learning_rates = self.reports.learning_rates
        self.resume.restore_rates(self.learning_rates)
        self.learning_rates.add_epochs(self._begun.epochs)

    def _check_callbacks(self) -> None:
        """Check that the scores which callbacks look at will be there."""
        names = score_names(["train", *self.data.evaluated], self._planned)
        past = {name for data in self.learning_rates.epochs.values() for name in scores_of(data.error)}
        self.callbacks.check_scores(None if names is None else names | past)

    def _load_ahead(self) -> None:
        """Start to load the first batches in another process while the network is built."""
        if self.first_epoch <= self.last_epoch:
            self.data.start(self.first_epoch, **self.resume.position)

    def _build_network(self) -> None:
        """Build the first network with its updater; TensorFlow is loaded here."""
        self.setup = TrainingSetup(self.config, self.world, self._begun.trainer)
        self._resources.callback(self.setup.close)
        devices.set_up(self.config)
        self.setup.begin(self.schedule.at(self.resume.loaded), self._planned[0][1])
        report_speed(self.config)
        del self._planned

    def _take_model(self) -> None:
        """Create the folder and lock it, before the saver removes leftovers of killed runs."""
        self._lock.acquire(make_folder=True)

    def _open_outputs(self) -> None:
        """Open the outputs: checkpoints, status file, learning-rate file and event files."""
        self.saver = Saver(
            self.config,
            writes=self.world.is_chief,
            build_graph=self._build_graph,
            stays_in_memory=self._begun.trainer is not None,
        )
        self._resources.callback(self.saver.close)
        self.status = RunStatus(self.config, self.world, self._stop)
        self._tell_end = self.status.ended
        fixed = start_epoch_fixed(self.config)
        self.boundary = StepBoundary(self.saver, self._stop, self._lock, self.world, start_epoch_fixed=fixed)
        self.reports.prepare()
        if self.world.is_chief:
            layers = self.schedule.at(max(self.last_epoch, 1)).layers
            run_settings.write(written_model(self.config), run_settings.facts_of(self.config, layers))

    def _load_parameters(self) -> None:
        """Load the parameters, then compare the plans of the processes."""
        self.resume.load(self.setup)
        if self.first_epoch > 1 or self.resume.begun is not None:
            for path in self.setup.net.sinks.of_all_passes():
                log.write(
                    2,
                    "Layer %r: its file will lack what was done before this start in epoch %d. With dump_per_run each "
                    "pass has a file of its own." % (path, self.first_epoch),
                )
        self.resume.check_ranks(self.data, self.setup)
