"""Return to the best model so far before an epoch: ``use_last_best_model``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.options import at_least, from_options, option
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints import adapters, checkpoint
from returnn_tf.engine.checkpoints import params as checkpoint_params
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.checkpoints.restoring import restore_state
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.update.averages import training_values
from returnn_tf.logging.log import log


@dataclass(frozen=True)
class BestModelOptions:
    """The setting ``use_last_best_model``: which epochs count, and when."""

    modulo: int = option(1, help="only before epochs that are a multiple of it", check=at_least(1))
    first_epoch: int = option(1, help="earlier epochs do not count", check=at_least(1))
    only_last_n: int = option(-1, help="only this number of epochs before the last one counts; -1: all")
    only_last_epochs: Optional[int] = option(None, help="the same", old="only_last_n")
    filter_score: float = option(float("inf"), help="only epochs with a lower score count")
    min_score_dist: float = option(0.0, help="how much better than that of the last epoch the score must be")


def best_model_options(config: Config) -> Optional[BestModelOptions]:
    """Return the options, or None if every epoch begins with the last model.

    :raises ConfigError: an unknown option or a wrong value
    """
    settings = TrainingSettings(config)
    given = settings.use_last_best_model
    if given is None or given is False:
        return None
    given, where = given if isinstance(given, dict) else {}, settings.describe_source("use_last_best_model")
    if "only_last_n" in given and "only_last_epochs" in given:
        raise SettingError("%s: only_last_epochs is an older name of only_last_n; remove it." % where)
    return from_options(BestModelOptions, given, where=where)


def best_epoch(config: Config, control: LearningRateControl, schedule: NetworkSchedule, epoch: int) -> Optional[int]:
    """Return the epoch with whose model an epoch begins, if that is not the one before it.

    Only epochs with the network of the epoch before count.

    :param control: with the scores of all earlier epochs
    :param epoch: the one to be trained
    """
    options = best_model_options(config)
    if options is None or epoch % options.modulo or epoch - 1 not in control.epochs:
        return None
    values = asdict(options)
    older = values.pop("only_last_epochs")
    if older is not None:
        values["only_last_n"] = older
    del values["modulo"]
    first = epoch - 1
    while first > 1 and schedule.at(first - 1).same_network(schedule.at(epoch - 1)):
        first -= 1
    values["first_epoch"] = max(first, options.first_epoch)
    return control.last_best_epoch(epoch - 1, **values)


def load_best(config: Config, trainer: StepTrainer, best: int, epoch: int) -> None:
    """Load parameters and optimizer state of an epoch; the global step stays. Without its checkpoint, warn.

    :param epoch: the one to be trained, for the log
    :raises DataError: the checkpoint is damaged
    """
    path = find_checkpoints(written_model(config)).get(best)
    if path is None:
        log.warn(
            "use_last_best_model: epoch %d should begin with the model of epoch %d, but its checkpoint is not there. "
            "Let save_interval and cleanup_old_models keep it." % (epoch, best)
        )
        return
    stored = adapters.training_values(trainer.net, checkpoint.read(path), checkpoint.read_state(path), path)
    values, state = training_values(*stored)
    checkpoint_params.assign(trainer.net.stored_params, values, source="The checkpoint %s" % path)
    left = restore_state(trainer, state)
    lacking = "; the optimizer state is not in it and stays" if left else ""
    log.write(3, "Epoch %d begins with the model of epoch %d, the best one: %s%s" % (epoch, best, path, lacking))
