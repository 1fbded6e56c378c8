"""The learning rates that a config plans, before scores of epochs change them."""

from __future__ import annotations

from returnn_tf.config import Config
from returnn_tf.config.errors import RateError
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.learning_rate.control import given_rates
from returnn_tf.engine.learning_rate.schedule import EpochRates, schedule_from_config

#: Steps whose rates are computed.
_PLACES = 1000


def planned_rates(config: Config) -> tuple[str, list[int], list[float]]:
    """Return "step" or "epoch", some steps or all epochs, and the rate of each.

    Steps are those of the first epoch's rate; a schedule that depends on the epoch as well is in its first epoch.

    :raises ConfigError: a function computes the rates of the steps
    """
    settings = LearningRateSettings(config)
    if settings.dynamic_learning_rate is not None:
        raise RateError(
            "%s: these rates are computed in each step of a training, they are not planned."
            % settings.describe_source("dynamic_learning_rate")
        )
    schedule, given = schedule_from_config(config), given_rates(config)
    unit, last = ("epoch", 0) if schedule is None else schedule.last()
    rate = settings.learning_rate
    if unit == "step":
        places = sorted({max(1, round(last * i / _PLACES)) for i in range(_PLACES + 1)})
        rates = EpochRates(schedule, 1, given.get(1, rate))
        return unit, places, [rates.of_step(place) for place in places]
    places, found = list(range(1, TrainingSettings(config).num_epochs + 1)), []
    for epoch in places:
        rate = given.get(epoch, rate)
        found.append(EpochRates(schedule, epoch, rate).of_step(1))
    return unit, places, found
