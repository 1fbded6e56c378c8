"""``dynamic_learning_rate``: a learning rate which changes within an epoch, computed at each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.options import above, from_options, option
from returnn_tf.config.settings import LearningRateSettings
from returnn_tf.util.lazy_tf import tf


@dataclass(frozen=True)
class Decay:
    """A learning rate that decays from step to step and restarts periodically."""

    interval: float = option(help="number of steps after which it starts again", check=above(0))
    decay: float = option(help="factor per step", check=above(0))


def from_config(config: Config, network: Any) -> Callable[[Any, Any], Any]:
    """Return the function (rate of the epoch, global step from 0) -> rate of the step; scalar tensors.

    ``{"interval": n, "decay": d}`` means ``rate * d ** (step % n)``. A function of the config is called with
    ``network``, ``global_train_step`` and ``learning_rate`` as keywords.

    :raises ConfigError: neither such a dict nor a function
    """
    given = LearningRateSettings(config).dynamic_learning_rate
    if given is None:
        return lambda rate, step: rate
    if callable(given):
        return lambda rate, step: tf.cast(
            given(network=network, global_train_step=step, learning_rate=rate), rate.dtype
        )
    if not isinstance(given, dict):
        raise ConfigError(
            'dynamic_learning_rate must be a function or like {"interval": 3, "decay": 0.5}, not %r.' % (given,)
        )
    options = from_options(Decay, given, where="dynamic_learning_rate")
    interval, decay = int(options.interval), options.decay
    return lambda rate, step: rate * tf.pow(tf.cast(decay, rate.dtype), tf.cast(step % interval, rate.dtype))
