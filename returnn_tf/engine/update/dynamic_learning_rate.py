"""``dynamic_learning_rate``: a learning rate which changes within an epoch, computed in each step."""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.util.lazy_tf import tf

_KEYS = ("interval", "decay")


def from_config(config: Any, network: Any) -> Callable[[Any, Any], Any]:
    """The function (learning rate of the epoch, global step from 0) -> learning rate of the step; scalar tensors.

    ``{"interval": n, "decay": d}`` gives ``rate * d ** (step % n)``. A function of the config is called with
    ``network``, ``global_train_step`` and ``learning_rate`` as keywords.

    :raises ConfigError: neither such a dict nor a function
    """
    given = config.typed("dynamic_learning_rate", None)
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
    for key in given:
        if key not in _KEYS:
            raise ConfigError("dynamic_learning_rate: unknown key %r. %s" % (key, did_you_mean(key, _KEYS)))
    for key in _KEYS:
        value = given.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise ConfigError("dynamic_learning_rate: %r must be a number > 0, not %r." % (key, value))
    interval, decay = int(given["interval"]), float(given["decay"])
    return lambda rate, step: rate * tf.pow(tf.cast(decay, rate.dtype), tf.cast(step % interval, rate.dtype))
