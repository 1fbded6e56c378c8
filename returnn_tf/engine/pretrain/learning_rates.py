"""Learning rates of epochs for which ``#config`` or pretraining sets them."""

from __future__ import annotations

from typing import Optional

from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.engine.learning_rate.control import LearningRateControl, given_rates
from returnn_tf.engine.pretrain.schedule import EpochNetwork


def rate_of_epoch(control: LearningRateControl, entry: EpochNetwork, epoch: int) -> float:
    """Return the rate of an epoch, and store it in the control; a rate that it already has is kept."""
    if epoch not in control.epochs:
        rate = _decided(control, entry, epoch)
        if rate is not None:
            control.set_rate(epoch, rate)
    return control.learning_rate(epoch)


def _decided(control: LearningRateControl, entry: EpochNetwork, epoch: int) -> Optional[float]:
    settings = LearningRateSettings(entry.config)
    if "learning_rates" in entry.settings:
        rates = given_rates(entry.config)
        if epoch in rates:
            return rates[epoch]
    if "learning_rate" in entry.settings:
        return settings.learning_rate
    if not entry.pretrain or epoch in control.given_rates or settings.use_learning_rate_control_always:
        return None
    rate = settings.pretrain_learning_rate
    return settings.learning_rate if rate is None else rate
