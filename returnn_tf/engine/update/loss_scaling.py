"""Loss scaling: a factor on the loss that keeps small gradients of float16 from becoming 0 (Micikevicius 2018)."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.update import UpdateSettings
from returnn_tf.util.lazy_tf import tf

_INITIAL = 2.0**15
_LARGEST = 2.0**24
#: Steps in a row with finite loss and gradient after which the factor is doubled.
_INTERVAL = 2000


class LossScaling:
    """The factor; a dynamic one is halved in a step whose gradient overflows, which is skipped.

    :param config: ``loss_scaling``, ``mixed_precision``
    """

    def __init__(self, config: Config) -> None:
        given = UpdateSettings(config).loss_scaling
        if given is None and NetworkSettings(config).mixed_precision == "float16":
            given = "dynamic"
        self._fixed: Optional[float] = None if given == "dynamic" or given is None else float(given)
        self._state: dict[str, Any] = {}
        if given == "dynamic":
            self._state = {
                "scale": tf.Variable(_INITIAL, dtype="float32", trainable=False, name="loss_scale"),
                "good_steps": tf.Variable(0, dtype="int32", trainable=False, name="loss_scale_good_steps"),
            }

    def state(self) -> dict[str, Any]:
        """Return the variables needed for an exact resume, by name."""
        return {"loss_scaling/" + name: variable for name, variable in self._state.items()}

    def factor(self) -> Any:
        """Return the factor of this step, float scalar or number, or None."""
        return self._state["scale"].read_value() if self._state else self._fixed

    def emit(self, factor: Any, finite: Any, total_loss: Any) -> Any:
        """Emit the factor of the next step.

        :param factor: of this step
        :param finite: bool scalar, whether loss and gradient are finite
        :return: bool scalar, whether the gradient overflowed by the factor: the step is skipped, but is no error
        """
        if not self._state:
            return tf.constant(False)
        overflow = tf.logical_and(tf.logical_not(finite), tf.math.is_finite(total_loss))
        overflow = tf.logical_and(overflow, factor > 1.0)
        good = tf.where(finite, self._state["good_steps"].read_value() + 1, 0)
        grow = good >= _INTERVAL
        grown = tf.where(grow, tf.minimum(factor * 2.0, _LARGEST), factor)
        self._state["scale"].assign(tf.where(overflow, tf.maximum(factor / 2.0, 1.0), grown))
        self._state["good_steps"].assign(tf.where(tf.logical_or(overflow, grow), 0, good))
        return overflow
