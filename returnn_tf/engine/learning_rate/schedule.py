"""``learning_rate_schedule``: a factor of the learning rate that follows from the step or the epoch alone.

A schedule multiplies the rate that ``learning_rate``, ``learning_rates``, ``learning_rate_control`` or the
learning-rate file give an epoch. It has no state: the step and the epoch are in the checkpoint.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional, Union

from returnn_tf.config import Config
from returnn_tf.config.errors import RateError
from returnn_tf.config.options import above, at_least, count_or_share, from_options, option, probability
from returnn_tf.config.registry import Registry
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.training import TrainingSettings


@dataclass(frozen=True)
class Schedule:
    """Base of all schedules: dataclasses of their options."""

    def factor(self, step: int, epoch: int) -> float:
        """Return the factor of the learning rate.

        :param step: the global step, from 1
        :param epoch: from 1
        """
        raise NotImplementedError

    def last(self) -> tuple[str, int]:
        """Return the unit and the number of steps or epochs from which on nothing of interest happens."""
        raise NotImplementedError


SCHEDULES: Registry[type[Schedule]] = Registry("schedule")

UNITS = ("step", "epoch")
#: A number of steps or epochs, or a share of ``total``.
Part = Union[int, float]


@dataclass(frozen=True)
class Curve(Schedule):
    """A schedule that depends on either the step or the epoch."""

    unit: str = option("step", choices=UNITS, help="what all other options count, and when the rate changes")

    def factor(self, step: int, epoch: int) -> float:
        """Return the factor of a step or epoch."""
        return self.at(step if self.unit == "step" else epoch)

    def at(self, t: int) -> float:
        """Return the factor of a step, or of an epoch, from 1."""
        raise NotImplementedError


@dataclass(frozen=True)
class OpenCurve(Curve):
    """A curve without end, which begins with a rise."""

    warmup: int = option(4000, check=at_least(1), help="steps or epochs until the peak")

    def last(self) -> tuple[str, int]:
        """Return four times the warm-up."""
        return self.unit, 4 * self.warmup


@SCHEDULES.register("warmup")
@dataclass(frozen=True)
class Warmup(OpenCurve):
    """Rise linearly to 1, and stay there."""

    def at(self, t: int) -> float:
        """Return ``min(t / warmup, 1)``."""
        return min(t / self.warmup, 1.0)


@SCHEDULES.register("warmup_inverse_sqrt")
@dataclass(frozen=True)
class WarmupInverseSqrt(OpenCurve):
    """Rise linearly to 1, then fall with the square root of the step (Vaswani et al. 2017, arXiv:1706.03762)."""

    def at(self, t: int) -> float:
        """Return ``min(t / warmup, sqrt(warmup / t))``."""
        return min(t / self.warmup, math.sqrt(self.warmup / t))


@SCHEDULES.register("noam")
@dataclass(frozen=True)
class Noam(OpenCurve):
    """`warmup_inverse_sqrt` with the scale of the paper, so that ``learning_rate`` is about 1."""

    model_dim: int = option(512, check=at_least(1), help="size of the vectors between the layers")

    def at(self, t: int) -> float:
        """Return ``model_dim ** -0.5 * min(t ** -0.5, t * warmup ** -1.5)``."""
        return float(self.model_dim**-0.5 * min(t**-0.5, t * self.warmup**-1.5))


@SCHEDULES.register("exponential")
@dataclass(frozen=True)
class Exponential(Curve):
    """Multiply by a factor every so many steps or epochs, after an optional linear rise."""

    decay: float = option(check=above(0), help="factor for each ``every`` steps or epochs")
    every: int = option(1, check=at_least(1), help="steps or epochs of one decay")
    staircase: bool = option(False, help="keep the rate in between")
    warmup: int = option(0, check=at_least(0), help="steps or epochs until the peak")

    def at(self, t: int) -> float:
        """Return ``decay ** ((t - max(warmup, 1)) / every)`` after the warm-up."""
        if t <= self.warmup:
            return t / self.warmup
        passed = (t - max(self.warmup, 1)) / self.every
        try:
            return float(self.decay ** (math.floor(passed) if self.staircase else passed))
        except OverflowError:  # a rise, to find the highest rate; the step refuses this one
            return math.inf

    def last(self) -> tuple[str, int]:
        """Return ten decays after the warm-up."""
        return self.unit, self.warmup + 10 * self.every


def _check_factors(value: Mapping[int, float]) -> Optional[str]:
    good = 1 in value and all(t >= 1 and 0 <= factor < math.inf for t, factor in value.items())
    return None if good else "must be a dict from steps or epochs to factors of at least 0, the first for 1"


@SCHEDULES.register("piecewise")
@dataclass(frozen=True)
class Piecewise(Curve):
    """A factor from each given step or epoch on."""

    factors: dict[int, float] = option(check=_check_factors, help="e.g. {1: 1.0, 10000: 0.5, 20000: 0.1}")

    def at(self, t: int) -> float:
        """Return the last factor that begins by then."""
        return self.factors[max(begin for begin in self.factors if begin <= t)]

    def last(self) -> tuple[str, int]:
        """Return the place of the last factor."""
        return self.unit, max(self.factors)


@dataclass(frozen=True)
class ClosedCurve(Curve):
    """A curve of ``total`` steps or epochs; after that, the factor remains what it is at the end."""

    total: Optional[int] = option(
        None, check=at_least(1), help="all steps or epochs; by epoch, the default is num_epochs"
    )

    @property
    def end(self) -> int:
        """Return ``total``, once `schedule_from_config` has filled it in."""
        assert self.total is not None
        return self.total

    def count(self, part: Part) -> float:
        """Return the number of steps or epochs of a part."""
        return part if isinstance(part, int) else part * self.end

    def parts(self) -> Mapping[str, float]:
        """Return the numbers of steps or epochs whose sum is at most ``total``, by option."""
        raise NotImplementedError

    def last(self) -> tuple[str, int]:
        """Return the end."""
        return self.unit, self.end


@dataclass(frozen=True)
class WarmupCurve(ClosedCurve):
    """A linear rise to 1, then a fall to ``final``."""

    warmup: float = option(0, check=count_or_share, help="steps or epochs until the peak, or a share of total (float)")
    final: float = option(0.0, check=probability, help="factor to which it falls: that after the last step or epoch")

    def parts(self) -> Mapping[str, float]:
        """Return the warm-up."""
        return {"warmup": self.count(self.warmup)}

    def at(self, t: int) -> float:
        """Return the factor of the rise, or of the fall."""
        peak = max(self.count(self.warmup), 1.0)
        if t < peak:
            return t / peak
        return self.final + (1 - self.final) * self.fall(min(t, self.end + 1) - peak, self.end + 1 - peak)

    def fall(self, passed: float, length: float) -> float:
        """Return the height of the fall, from 1 to 0, after ``passed`` of ``length`` steps or epochs."""
        raise NotImplementedError


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine(WarmupCurve):
    """Fall as half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983), after an optional linear rise."""

    def fall(self, passed: float, length: float) -> float:
        """Return ``(1 + cos(pi passed / length)) / 2``."""
        return (1 + math.cos(math.pi * _ratio(passed, length))) / 2


@SCHEDULES.register("polynomial", "linear")
@dataclass(frozen=True)
class Polynomial(WarmupCurve):
    """Fall linearly, or with another power, after an optional linear rise."""

    power: float = option(1.0, check=above(0), help="exponent of the rest")

    def fall(self, passed: float, length: float) -> float:
        """Return ``(1 - passed / length) ** power``."""
        return float((1 - _ratio(passed, length)) ** self.power)


@SCHEDULES.register("warmup_stable_decay")
@dataclass(frozen=True)
class WarmupStableDecay(WarmupCurve):
    """Rise linearly, stay, and fall at the end (Hu et al. 2024, arXiv:2404.06395)."""

    decay: float = option(0.1, check=count_or_share, help="steps or epochs of the fall, or a share of total (float)")
    shape: str = option(
        "linear", choices=("linear", "sqrt", "cosine"), help="of the fall; sqrt: 1 - sqrt(x), arXiv:2405.18392"
    )

    def parts(self) -> Mapping[str, float]:
        """Return the warm-up and the fall."""
        return {**super().parts(), "decay": self.count(self.decay)}

    def fall(self, passed: float, length: float) -> float:
        """Return 1 before the fall, then the height of its shape."""
        decay = self.count(self.decay)
        x = max(0.0, 1 - _ratio(length - passed, decay)) if decay else 0.0
        return {"linear": 1 - x, "sqrt": 1 - math.sqrt(x), "cosine": (1 + math.cos(math.pi * x)) / 2}[self.shape]


@SCHEDULES.register("one_cycle")
@dataclass(frozen=True)
class OneCycle(ClosedCurve):
    """Rise linearly from ``initial``, fall back to it, and end with a tail (Smith and Topin 2018, arXiv:1708.07120)."""

    initial: float = option(0.1, check=probability, help="factor at the start, and before the tail")
    rise: float = option(0.45, check=count_or_share, help="steps or epochs of the rise, or a share of total (float)")
    decay: float = option(0.45, check=count_or_share, help="steps or epochs of the fall, or a share of total (float)")
    final: float = option(0.001, check=probability, help="factor at the end")

    def parts(self) -> Mapping[str, float]:
        """Return rise and fall."""
        return {"rise": self.count(self.rise), "decay": self.count(self.decay)}

    def at(self, t: int) -> float:
        """Return the factor on one of three straight lines."""
        rise, decay, t = self.count(self.rise), self.count(self.decay), min(t, self.end)
        if t <= rise:
            return _between(self.initial, 1.0, t / rise)
        if t <= rise + decay:
            return _between(1.0, self.initial, (t - rise) / decay)
        return _between(self.initial, self.final, _ratio(t - rise - decay, self.end - rise - decay))


@SCHEDULES.register("eden")
@dataclass(frozen=True)
class Eden(Schedule):
    """The schedule of ScaledAdam, by step and by epoch (Yao et al. 2023, arXiv:2310.11230)."""

    warmup: int = option(500, check=at_least(0), help="steps of the rise from warmup_start to 1")
    warmup_start: float = option(0.5, check=probability, help="factor at the first step")
    steps: float = option(7500, check=above(0), help="steps after which the rate falls")
    epochs: float = option(3.5, check=above(0), help="epochs after which the rate falls")

    def factor(self, step: int, epoch: int) -> float:
        """Return ``((t^2 + s^2) / s^2)^-1/4 ((e^2 + r^2) / r^2)^-1/4`` times the warm-up, for t, e that are done."""
        t, e = step - 1, epoch - 1
        by_step, by_epoch = 1 + (t / self.steps) ** 2, 1 + (e / self.epochs) ** 2
        warmup = _between(self.warmup_start, 1.0, t / self.warmup) if t < self.warmup else 1.0
        return float((by_step * by_epoch) ** -0.25 * warmup)

    def last(self) -> tuple[str, int]:
        """Return some steps during which the rate falls."""
        return "step", round(4 * self.steps)


def _ratio(part: float, whole: float) -> float:
    """Return a share from 0 to 1; 1 of nothing."""
    return min(max(part / whole, 0.0), 1.0) if whole else 1.0


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def schedule_from_config(config: Config) -> Optional[Schedule]:
    """Return the schedule of ``learning_rate_schedule``, if there is one.

    :raises ConfigError: no or an unknown class, a wrong option, parts that are longer than the whole
    """
    settings = LearningRateSettings(config)
    given, where = settings.learning_rate_schedule, settings.describe_source("learning_rate_schedule")
    if given is None:
        return None
    if "class" not in given:
        raise RateError('%s must be a dict with "class", e.g. {"class": "cosine", "total": 100000}.' % where)
    cls = SCHEDULES.get(given["class"], where)
    where = "%s: class %r" % (where, given["class"])
    schedule = from_options(cls, {name: value for name, value in given.items() if name != "class"}, where=where)
    return _complete(schedule, config, where) if isinstance(schedule, ClosedCurve) else schedule


def _complete(schedule: ClosedCurve, config: Config, where: str) -> Schedule:
    """Return a schedule with its end.

    :raises ConfigError: the end is unknown, or the parts are longer
    """
    if schedule.total is None:
        epochs = TrainingSettings(config).num_epochs if schedule.unit == "epoch" else None
        if not epochs:
            raise RateError(
                "%s: total is missing: the number of all steps%s."
                % (where, '. By epoch, with "unit": "epoch", it is num_epochs' if schedule.unit == "step" else "")
            )
        schedule = dataclasses.replace(schedule, total=epochs)
    parts = schedule.parts()
    if sum(parts.values()) > schedule.end * (1 + 1e-9):
        names = " and ".join("%s (%g)" % part for part in parts.items())
        raise RateError("%s: %s are longer than total, %d." % (where, names, schedule.end))
    return schedule


@dataclass(frozen=True)
class EpochRates:
    """The learning rates within an epoch.

    :param of_epoch: the rate without a schedule
    """

    schedule: Optional[Schedule]
    epoch: int
    of_epoch: float

    def of_step(self, step: int) -> float:
        """Return the rate of a global step, from 1."""
        return self.of_epoch if self.schedule is None else self.of_epoch * self.schedule.factor(step, self.epoch)


def turning_points(schedule: Schedule) -> tuple[str, dict[int, float]]:
    """Return the unit of a schedule, and its first, highest and last factor by step or epoch, the others being 1.

    The highest one is looked for at some hundred places.
    """
    unit, last = schedule.last()
    places = sorted({max(1, round(last * i / 200)) for i in range(201)} | {*range(1, min(last, 200) + 1)})
    factors = {place: schedule.factor(*((1, place) if unit == "epoch" else (place, 1))) for place in places}
    highest = max(places, key=lambda place: factors[place])
    return unit, {place: factors[place] for place in sorted({1, highest, last})}


def highest_factor(schedule: Optional[Schedule]) -> float:
    """Return the highest factor of a schedule; 1 without one."""
    return 1.0 if schedule is None else max(turning_points(schedule)[1].values())


def described(schedule: Schedule, rate: float) -> str:
    """Return the rates of a schedule at its first, highest and last step or epoch as a sentence.

    :param rate: the rate without the schedule
    """
    unit, factors = turning_points(schedule)
    rates = ["%.3g in %s %d" % (rate * factor, unit, place) for place, factor in factors.items()]
    return "learning rate by learning_rate_schedule: %s" % ", ".join(rates)
