"""Decision, within a step, whether to apply its update: NaN and Inf, and spikes of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.options import above, at_least, from_options, option
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.util.lazy_tf import tf


def _is_decay(value: float) -> Optional[str]:
    return None if 0 < value < 1 else "must be between 0 and 1"


@dataclass(frozen=True)
class SpikeOptions:
    """The setting ``loss_spike``: detection of a loss far above those of earlier steps.

    A spike is a value above *mean + factor x deviation*, both moving averages; the deviation is the mean absolute one.
    """

    factor: float = option(10.0, help="of the deviation", check=above(0))
    measure: str = option("loss", help="the monitored value", choices=("loss", "grad_norm"))
    policy: str = option("skip", help="skip the step, stop, or only warn", choices=("skip", "stop", "warn"))
    warmup: int = option(100, help="number of steps that only update the averages", check=at_least(2))
    decay: float = option(0.98, help="of the moving averages, per step", check=_is_decay)


class LossSpikeError(DataError):
    """The loss of a step is far above those of earlier steps, and the policy of ``loss_spike`` is to stop."""

    class_topic = "nan"


class SkippedStepsError(DataError):
    """More consecutive steps were skipped than ``max_skipped_steps`` allows."""

    class_topic = "nan"


class UpdateGuard:
    """Skips bad updates; keeps the averages for spike detection, also across an exact resume.

    :param config: ``stop_on_nonfinite_train_score``, ``max_skipped_steps``, ``loss_spike``
    :raises ConfigError: a wrong option
    """

    def __init__(self, config: Config) -> None:
        self.stops_on_nonfinite: bool = TrainingSettings(config).stop_on_nonfinite_train_score
        self.options = spike_options(config)
        self._max_skipped = TrainingSettings(config).max_skipped_steps
        self._skipped = 0  # in a row
        self._averages: dict[str, Any] = {}
        if self.options is not None:
            self._averages = {
                name: tf.Variable(0.0, dtype="float64", trainable=False, name="loss_spike_" + name)
                for name in ("mean", "deviation", "steps")
            }

    def state(self) -> dict[str, Any]:
        """Return the variables needed for an exact resume, by name."""
        return {"loss_spike/" + name: variable for name, variable in self._averages.items()}

    def emit(self, finite: Any, measured: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Emit the decision, in a traced step.

        :param finite: bool scalar, whether loss and gradient are finite
        :param measured: ``loss``: mean per frame or sequence, and ``grad_norm``; float scalars
        :return: bool scalars: whether to update, whether this is a spike, whether the step counts as done
        """
        if self.options is None:
            return finite, tf.constant(False), tf.logical_or(finite, not self.stops_on_nonfinite)
        value = tf.cast(measured[self.options.measure], "float64")
        mean, deviation, steps = (self._averages[name].read_value() for name in ("mean", "deviation", "steps"))
        limit = mean + self.options.factor * deviation
        above = tf.logical_and(steps >= float(self.options.warmup), value > limit)
        spike = tf.logical_and(finite, above)
        self._watch(tf.where(spike, limit, value), finite)
        policy = self.options.policy
        update = finite if policy == "warn" else tf.logical_and(finite, tf.logical_not(spike))
        counts = tf.logical_or(finite, not self.stops_on_nonfinite)
        return update, spike, tf.logical_and(counts, tf.logical_not(spike)) if policy == "stop" else counts

    def _watch(self, value: Any, finite: Any) -> None:
        """Update the averages by a value. A spike counts as the limit it exceeded, so that they can follow."""
        assert self.options is not None
        mean, deviation, steps = (self._averages[name] for name in ("mean", "deviation", "steps"))
        # the plain mean at first: a moving average is biased towards its start value
        weight = tf.maximum(1.0 / (steps.read_value() + 1.0), 1.0 - self.options.decay)
        weight = tf.where(finite, weight, tf.zeros_like(weight))
        value = tf.where(finite, value, mean.read_value())
        new_mean = mean.read_value() + weight * (value - mean.read_value())
        away = tf.abs(value - new_mean)
        deviation.assign_add(weight * (away - deviation.read_value()))
        mean.assign(new_mean)
        steps.assign_add(tf.cast(finite, "float64"))

    def check(self, result: StepResult) -> None:
        """Check the result of a step.

        :raises LossSpikeError: a spike, and the policy is to stop
        :raises SkippedStepsError: too many consecutive steps were skipped
        """
        options = self.options
        if result.spike and options is not None and options.policy == "stop":
            raise LossSpikeError(
                "Step %s: the %s is a spike: loss %s, gradient norm %s. The parameters were not changed by this step. "
                "Lower learning_rate, set gradient_clip_global_norm, or skip such steps: "
                "loss_spike = {'policy': 'skip'}." % (result.step, options.measure, result.total_loss, result.grad_norm)
            )
        self._skipped = 0 if result.updated else self._skipped + 1
        if self._skipped > self._max_skipped:
            raise SkippedStepsError(
                "Step %s: %i consecutive steps were skipped (loss %s, gradient norm %s), so training makes no "
                "progress. Go back to an earlier checkpoint with a lower learning_rate, or raise max_skipped_steps."
                % (result.step, self._skipped, result.total_loss, result.grad_norm)
            )


def skipped_text(result: StepResult) -> str:
    """Return the warning for a step that was skipped, or had a spike."""
    assert result.grad_norm is not None
    values = "loss %g, gradient norm %g" % (result.total_loss, result.grad_norm)
    wrong = "the loss is far above those of earlier steps" if result.spike else "loss or gradient is not finite"
    return "Step %s: %s (%s)%s" % (result.step, wrong, values, "" if result.updated else "; skipped")


def spike_options(config: Config) -> Optional[SpikeOptions]:
    """Return the options of the setting ``loss_spike``: None, True or a dict.

    :raises ConfigError: unknown or wrong option
    """
    given = TrainingSettings(config).loss_spike
    where = TrainingSettings(config).describe_source("loss_spike")
    if given is None or given is False:
        return None
    if given is True:
        return SpikeOptions()
    if not isinstance(given, dict):
        raise ConfigError("%s: expected True or a dict such as {'factor': 10, 'policy': 'skip'}." % where, topic="nan")
    return from_options(SpikeOptions, given, where=where)
