"""Learning-rate schemes: rules for the next rate, given rates and scores so far; one registered class each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.registry import Registry
from returnn_tf.config.settings.learning_rate import Factor, LearningRateSettings

SCHEMES: Registry[type[Scheme]] = Registry("scheme", "returnn_tf.engine.learning_rate", plugins="returnn_tf.schedules")

#: Class decorator: makes a scheme known to ``learning_rate_control`` under these names.
register_schedule = SCHEMES.register


def scheme_from_config(config: Config) -> Scheme:
    """Return the scheme named by ``learning_rate_control``; "constant" by default."""
    settings = LearningRateSettings(config)
    return SCHEMES.get(settings.learning_rate_control, settings.describe_source("learning_rate_control"))(config)


@dataclass(frozen=True)
class PastEpoch:
    """An epoch as a scheme sees it: rate, scores, and the name of the deciding score, if any."""

    epoch: int
    learning_rate: float
    scores: dict[str, Any]
    measure: Optional[str]


class Scheme:
    """Base of all schemes, with their common options. A subclass decides whether a rate decays or grows."""

    def __init__(self, config: Config):
        settings = LearningRateSettings(config)
        self.initial_rate = settings.learning_rate
        self.min_rate = settings.min_learning_rate
        self.decay = settings.learning_rate_decay
        self.growth = settings.learning_rate_growth
        self.min_epochs_per_rate = settings.learning_rate_control_min_num_epochs_per_new_lr
        self.relative_to_rate = settings.learning_rate_control_relative_error_relative_lr
        self.divide_by_old = settings.newbob_relative_error_div_by_old

    def next_rate(self, epoch: int, past: list[PastEpoch]) -> float:
        """Return the rate of ``epoch``, given all earlier epochs with a rate, in order."""
        if not past:
            return self.initial_rate
        rate = past[-1].learning_rate
        if self._too_early(past):
            return rate
        return self.changed(rate, epoch, past)

    def changed(self, rate: float, epoch: int, past: list[PastEpoch]) -> float:
        """Return the rate that follows ``rate``, the one of the last epoch."""
        raise NotImplementedError

    def _too_early(self, past: list[PastEpoch]) -> bool:
        count = self.min_epochs_per_rate
        if count <= 1:
            return False
        return len(past) < count or len({p.learning_rate for p in past[-count:]}) > 1

    def decayed(self, rate: float) -> float:
        """Return the rate after a decay; not below ``min_learning_rate``."""
        return max(_applied(self.decay, rate), self.min_rate)

    def grown(self, rate: float) -> float:
        """Return the rate after growth; there is no upper limit."""
        return _applied(self.growth, rate)

    def difference(self, old: PastEpoch, new: PastEpoch) -> Optional[float]:
        """Return the newer score minus the older one, or None if one of them is missing.

        A newer score that is NaN or Inf counts as infinitely worse; an older one as missing.
        """
        if new.measure is None or new.measure not in old.scores:
            return None
        if not math.isfinite(new.scores[new.measure]):
            return math.inf
        if not math.isfinite(old.scores[new.measure]):
            return None
        return float(new.scores[new.measure] - old.scores[new.measure])

    def relative_error(self, old: PastEpoch, new: PastEpoch) -> Optional[float]:
        """Return the difference relative to the score; negative for an improvement, None if a score is missing."""
        difference = self.difference(old, new)
        if difference is None or math.isinf(difference):
            return difference
        score = abs((old if self.divide_by_old else new).scores[new.measure or ""])
        relative = difference / score if score else difference * float("inf") if difference else 0.0
        if self.relative_to_rate and new.learning_rate > 0:
            relative /= new.learning_rate / self.initial_rate
        return relative


def _applied(factor: Factor, rate: float) -> float:
    return factor(rate) if callable(factor) else rate * factor


@register_schedule("constant")
class ConstantRate(Scheme):
    """The rate stays as it is."""

    def changed(self, rate: float, epoch: int, past: list[PastEpoch]) -> float:
        """Return the same rate."""
        return rate


@register_schedule("newbob", "newbob_rel", "newbob_relative")
class NewbobRelative(Scheme):
    """Decays unless the last epoch improved by more than a fraction of the score."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.threshold = LearningRateSettings(config).newbob_relative_error_threshold

    def changed(self, rate: float, epoch: int, past: list[PastEpoch]) -> float:
        """Return the decayed or grown rate; the same rate if one of the last two epochs has no score."""
        error = self.relative_error(*past[-2:]) if len(past) >= 2 else None
        if error is None:
            return rate
        return self.decayed(rate) if error > self.threshold else self.grown(rate)


@register_schedule("newbob_abs")
class NewbobAbsolute(Scheme):
    """Decays unless the last epoch improved by more than a fixed amount."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.threshold = LearningRateSettings(config).newbob_error_threshold

    def changed(self, rate: float, epoch: int, past: list[PastEpoch]) -> float:
        """Return the decayed or grown rate; the same rate if one of the last two epochs has no score."""
        error = self.difference(*past[-2:]) if len(past) >= 2 else None
        if error is None:
            return rate
        return self.decayed(rate) if error > self.threshold else self.grown(rate)


@register_schedule("newbob_multi_epoch")
class NewbobMultiEpoch(Scheme):
    """Decides every few epochs by the mean relative improvement over several epochs."""

    def __init__(self, config: Config):
        super().__init__(config)
        settings = LearningRateSettings(config)
        self.num_epochs = settings.newbob_multi_num_epochs
        self.interval = settings.newbob_multi_update_interval or self.num_epochs
        self.threshold = settings.newbob_relative_error_threshold
        grow = settings.newbob_relative_error_grow_threshold
        self.grow_threshold = self.threshold if grow is None else grow

    def changed(self, rate: float, epoch: int, past: list[PastEpoch]) -> float:
        """Return the decayed or grown rate; the same one between the thresholds and if a score is missing."""
        if self.interval > 1 and epoch % self.interval != 1:
            return rate
        errors = [self.relative_error(*pair) for pair in zip(past[:-1], past[1:])][-self.num_epochs :]
        known = [error for error in errors if error is not None]
        if not known or len(known) < len(errors):
            return rate  # an epoch without score counts for nothing: neither improvement nor stagnation is known
        mean = sum(known) / len(known)
        if mean > self.threshold:
            return self.decayed(rate)
        return self.grown(rate) if mean < self.grow_threshold else rate
