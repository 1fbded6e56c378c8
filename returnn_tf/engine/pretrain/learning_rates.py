"""Learning rates of epochs which ``#config`` or pretraining decide about."""

from __future__ import annotations

from typing import Optional

from returnn_tf.engine.learning_rate.control import LearningRateControl, given_rates
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.engine.pretrain.schedule import EpochNetwork

RATE_KEYS = ("learning_rate", "learning_rates", "pretrain_learning_rate", "use_learning_rate_control_always")


def rate_of_epoch(control: LearningRateControl, entry: EpochNetwork, epoch: int) -> float:
    """The rate, which the control keeps from now on; one which it has already stays."""
    if epoch not in control.epochs:
        rate = _decided(control, entry, epoch)
        if rate is not None:
            control.epochs[epoch] = EpochData(rate)
    return control.learning_rate(epoch)


def _decided(control: LearningRateControl, entry: EpochNetwork, epoch: int) -> Optional[float]:
    config = entry.config
    if "learning_rates" in entry.settings:
        rates = given_rates(config)
        if epoch in rates:
            return rates[epoch]
    if "learning_rate" in entry.settings:
        return float(config.float("learning_rate", 1.0))
    if not entry.pretrain or epoch in control.given_rates or config.bool("use_learning_rate_control_always", False):
        return None
    return float(config.float("pretrain_learning_rate", config.float("learning_rate", 1.0)))
