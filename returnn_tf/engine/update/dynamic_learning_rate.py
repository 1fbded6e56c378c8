"""``dynamic_learning_rate``: a learning rate which changes within an epoch, computed at each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import RateError, shown
from returnn_tf.config.options import above, at_least, from_options, option
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.user_code import call_of_config
from returnn_tf.util.lazy_tf import tf


@dataclass(frozen=True)
class Decay:
    """A learning rate that decays from step to step and restarts periodically."""

    interval: float = option(help="number of steps after which it starts again", check=at_least(1))
    decay: float = option(help="factor per step", check=above(0))


def from_config(config: Config, network: Any) -> Callable[[Any, Any], Any]:
    """Return the function (rate of the epoch, global step from 0) -> rate of the step; scalar tensors.

    ``{"interval": n, "decay": d}`` means ``rate * d ** (step % n)``. A function of the config is called with
    ``network``, ``global_train_step`` and ``learning_rate`` as keywords.

    :raises ConfigError: neither such a dict nor a function
    """
    settings = LearningRateSettings(config)
    given = settings.dynamic_learning_rate
    if callable(given):
        where = settings.describe_source("dynamic_learning_rate")
        return lambda rate, step: _number(
            call_of_config(where, given, network=network, global_train_step=step, learning_rate=rate), rate.dtype, where
        )
    options = decay_of(config)
    if options is None:
        return lambda rate, step: rate
    interval, decay = int(options.interval), options.decay
    return lambda rate, step: rate * tf.pow(tf.cast(decay, rate.dtype), tf.cast(step % interval, rate.dtype))


def _number(value: Any, dtype: Any, where: str) -> Any:
    """Return the result of a function of the config as scalar tensor.

    :raises ConfigError: it is not a number
    """
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        tensor = None
    if tensor is None or not (tensor.dtype.is_floating or tensor.dtype.is_integer) or tensor.shape.rank:
        kind = (
            shown(value)
            if tensor is None or tensor.dtype == tf.string
            else "a tensor %s %s" % (tensor.dtype.name, tensor.shape)
        )
        raise RateError(
            "%s: the function must return a number, the rate of the step, but it returns %s" % (where, kind)
        )
    return tf.cast(tensor, dtype)


def decay_of(config: Config) -> Optional[Decay]:
    """Return the options of ``dynamic_learning_rate``, if it is a dict.

    :raises ConfigError: it is neither a dict nor a function, or has a wrong option
    """
    settings = LearningRateSettings(config)
    given, where = settings.dynamic_learning_rate, settings.describe_source("dynamic_learning_rate")
    return None if given is None or callable(given) else from_options(Decay, given, where=where)
