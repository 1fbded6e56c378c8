"""Where a training begins: anew, behind an epoch or within one; and whether all its processes begin alike."""

from __future__ import annotations

from typing import Any, Dict, Optional

from returnn_tf.engine.checkpoints import model_dir, preload
from returnn_tf.engine.checkpoints.restoring import Resumption, restore
from returnn_tf.engine.data.training_data import TrainingData
from returnn_tf.engine.distributed import start_checks
from returnn_tf.engine.distributed.options import GRAD, HorovodOptions
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.passes.progress import PassState, Progress, data_settings
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.pretrain.stage import Stage
from returnn_tf.engine.support.data_facts import data_facts
from returnn_tf.engine.support.fingerprint import settings
from returnn_tf.engine.training.load_model import report_defect
from returnn_tf.logging.log import log


class Start:
    """The epoch with which a training begins, the checkpoint from which it goes on, and what was done of the epoch."""

    def __init__(self, config: Any, schedule: NetworkSchedule, world: World) -> None:
        """
        :param config: Config
        :param schedule: the settings of each epoch
        :param world: of the process
        :raises ConfigError: there is no such checkpoint, or it can't be gone on from with these settings
        :raises DataError: a checkpoint is damaged
        """
        self._config = config
        self._world = world
        self._choice = model_dir.choose_whole(config, report_defect)
        left_behind = model_dir.tell_left_behind(config, self._choice)
        if left_behind is not None and world.is_chief:
            log.warn(left_behind)
        self._resumption = Resumption(config, self._choice)
        self._resumption.tell_changes(settings(config))
        self.epoch = self._choice.start_epoch  #: the first one to train
        self.loaded = max(self._choice.epoch or 0, 1)  #: the epoch whose network the first values belong to
        #: What is done of the first epoch; None from its end on, and if it is done from its begin.
        self.begun: Optional[Progress] = self._resumption.progress(data_settings(schedule.at(self.loaded).config))
        if self.begun is not None:
            common = HorovodOptions.from_config(config).reduce_type == GRAD
            self.begun = self.begun.for_ranks(world.size, common=common)

    def check_data(self, data: TrainingData) -> None:
        """
        :raises ConfigError: within the epoch, the data is not that of the run which made the checkpoint
        """
        if self.begun is not None and (data.shared or self._world.is_chief):
            # where each process has data of its own, the checkpoint tells of the chief's
            self._resumption.check_data(self.begun, data.train_facts(self.epoch))

    def restore_rates(self, control: LearningRateControl) -> None:
        """See :meth:`Resumption.restore_rates`."""
        self._resumption.restore_rates(control)

    @property
    def done(self) -> PassState:
        """What this process had done of the epoch."""
        return PassState() if self.begun is None else self.begun.of_rank(self._world.rank, self._world.size)

    @property
    def position(self) -> Dict[str, Any]:
        """Where the batches of the epoch begin, see `DataSource.batches`."""
        shared = [] if self.begun is None else self.begun.shared
        return {"start_batch": self.done.batches, "shared": shared}

    def load(self, stage: Stage) -> None:
        """Gives the network its first values.

        :raises DataError: the checkpoint does not fit the network
        """
        if self._choice.path is not None:
            restore(stage.trainer, self._choice)
        else:
            preload.load_on_init(stage.net.plan, stage.net.params)
        preload.load(self._config, stage.net.params, train=True, fresh=self.epoch == 1 and self.begun is None)

    def check_ranks(self, data: TrainingData, stage: Stage) -> None:
        """All processes are about to do the same, and begin with the same parameters.

        :raises ConfigError: they are not
        """
        if self._world.size == 1:
            return
        own = start_checks.OWN_KEYS | (frozenset() if data.shared else start_checks.OWN_DATA_KEYS)
        facts = {"settings": {key: text for key, text in settings(self._config).items() if key not in own}}
        facts["network"] = start_checks.network_facts(stage.net, stage.entry.layers)
        facts["start"] = {"epoch": str(self.epoch), "step": str(stage.trainer.step_count)}
        for name, dataset in data.datasets(shared=True).items():
            facts["data of %r" % name] = data_facts(dataset, self.epoch)
        start_checks.check_same(self._world, facts)
        stage.trainer.ranks.broadcast(stage.trainer)
        log.write(3, "%d processes train together: %s" % (self._world.size, self._world.name))
