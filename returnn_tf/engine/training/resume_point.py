"""Where training starts: from scratch, after an epoch, or mid-epoch; and checks that all processes agree."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.settings import setting_by_key
from returnn_tf.config.settings.distributed import GRAD
from returnn_tf.engine.checkpoints import fine_tuning, model_dir, preload
from returnn_tf.engine.checkpoints.restoring import CheckpointManifest, restore
from returnn_tf.engine.data.training_data import TrainingData
from returnn_tf.engine.distributed import start_checks
from returnn_tf.engine.distributed.options import options_of
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.passes.progress import PassState, Progress, data_settings
from returnn_tf.engine.pretrain.current_network import CurrentNetwork
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.support.data_facts import data_facts
from returnn_tf.engine.support.fingerprint import settings
from returnn_tf.engine.training.load_model import report_invalid
from returnn_tf.logging.log import log


class ResumePoint:
    """The first epoch, the checkpoint to resume from, and, from `begin` on, the position within the epoch.

    :param done: epochs that this process has trained already, which count if no checkpoint is loaded
    :raises ConfigError: there is no such checkpoint
    :raises DataError: a checkpoint is damaged
    """

    def __init__(self, config: Config, world: World, done: int = 0) -> None:
        self._config = config
        self._world = world
        self._choice = model_dir.choose_intact(config, report_invalid)
        left_behind = model_dir.leftover_warning(config, self._choice)
        if left_behind is not None and world.is_chief:
            log.warn(left_behind)
        self._manifest = CheckpointManifest(config, self._choice)
        self._continues = done > 0 and self._choice.path is None
        self.epoch = done + 1 if self._continues else self._choice.start_epoch  #: the first one to train
        self.loaded = max(self._choice.epoch or 0, 1)  #: the epoch whose network has the first values
        #: What is done of the first epoch; None if it is trained from its start.
        self.begun: Optional[Progress] = None

    def begin(self, config: Config, schedule: NetworkSchedule) -> None:
        """Find the position within the epoch, and log what has changed since the checkpoint.

        :param config: with the batches of the training
        :param schedule: the settings of each epoch
        :raises ConfigError: these settings can't resume from the checkpoint
        """
        self._config = config
        self._manifest.log_changes(settings(config))
        self.begun = self._manifest.progress(data_settings(schedule.at(self.loaded).config))
        if self.begun is not None:
            common = options_of(config).reduce == GRAD
            self.begun = self.begun.for_ranks(self._world.size, common=common)

    def check_data(self, data: TrainingData) -> None:
        """Check that the data is that of the run which wrote the checkpoint (for a start within an epoch).

        :raises ConfigError: the data differs
        """
        if self.begun is not None and (data.shared or self._world.is_chief):
            # if each process has its own data, the checkpoint describes the chief's
            self._manifest.check_data(self.begun, data.train_facts(self.epoch))

    def restore_rates(self, control: LearningRateControl) -> None:
        """Add rates that only the checkpoint has, and warn if the learning-rate file is of another run."""
        stale = self._manifest.stale_rates(control, self.epoch)
        if stale is not None:
            log.warn(stale)
        self._manifest.restore_rates(control)

    def begun_of(self, epoch: int) -> Optional[Progress]:
        """Return the progress within an epoch; None if it is trained from its start."""
        return self.begun if epoch == self.epoch else None

    def done(self, epoch: int) -> PassState:
        """Return the state of this process within an epoch."""
        begun = self.begun_of(epoch)
        return PassState() if begun is None else begun.of_rank(self._world.rank, self._world.size)

    def position(self, epoch: int) -> dict[str, Any]:
        """Return the start of the batches of an epoch: options of `DataSource.batches`."""
        begun, done = self.begun_of(epoch), self.done(epoch)
        shared = [] if begun is None else begun.shared
        return {"start_batch": done.batches, "start_seq": done.seqs, "resume": done.resume, "shared": shared}

    def load(self, current: CurrentNetwork) -> None:
        """Load or initialise the parameters of the network, unless this process has trained it before.

        :raises DataError: the checkpoint does not fit the network
        """
        if self._continues:
            return
        own = {name: current.net.stored_params[name] for name in current.net.plan.plain_params}
        if self._choice.path is not None:
            fine_tuning.check_resumed(self._config, self._choice.path)
            restore(current.trainer, self._choice)
        else:
            preload.load_on_init(current.net.plan, own)
            fine_tuning.load(self._config, current.net)
        preload.load(self._config, own, train=True, fresh=self.epoch == 1 and self.begun is None)

    def check_ranks(self, data: TrainingData, current: CurrentNetwork) -> None:
        """Check that all processes are about to do the same, and broadcast the parameters.

        :raises ConfigError: they differ
        """
        if self._world.size == 1:
            return
        own = start_checks.own_keys() | (frozenset() if data.shared else start_checks.OWN_DATA_KEYS)
        texts = {key: text for key, text in settings(self._config).items() if key not in own}
        facts = {"settings": {key: text for key, text in texts.items() if key in setting_by_key()}}
        facts["network"] = start_checks.network_facts(current.net, current.entry.layers)
        facts["start"] = {"epoch": str(self.epoch), "step": str(current.trainer.step_count)}
        datasets = data.datasets(shared=True)
        facts["data"] = {"dataset %r" % name: "there" for name in datasets}  # compared first, so that the rest fits
        for name, dataset in datasets.items():
            facts["data of %r" % name] = data_facts(dataset, self.epoch)
        start_checks.check_same(self._world, facts)
        names = {key: text for key, text in texts.items() if key not in setting_by_key()}
        different = start_checks.different_names(self._world, names)
        if different and self._world.is_chief:
            log.warn(
                "The ranks differ in %s. These are not settings, so it matters only if functions of the config "
                "use them." % ", ".join(different)
            )
        current.trainer.ranks.broadcast(current.trainer)
        log.write(
            3, "%d processes train together, %s: %s" % (self._world.size, self._world.connection, self._world.name)
        )
