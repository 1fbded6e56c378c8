"""Overfit one batch: a network that can't learn six sequences by heart will not learn the rest."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, DataError
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.engine.learning_rate.control import given_rates
from returnn_tf.engine.learning_rate.schedule import highest_factor, schedule_from_config
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support.nonfinite import NonFiniteError
from returnn_tf.tasks.sanity.report import FAILED, WARNING, Finding, ok

STEPS = 100
_MOST_SECONDS = 60.0
_LAST = 5  # steps whose mean is the result
_LEARNED, _MOVED = 0.5, 0.9  # of the loss at the start


def check_overfit(net: Network, feed: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    """Yield the findings on training with the same batch in all steps."""
    rate = max([LearningRateSettings(config).learning_rate, *given_rates(config).values()])
    rate *= highest_factor(schedule_from_config(config))
    values = net.get_param_values()
    losses = train(net, config, feed, rate)
    check = "overfits one batch"
    found = "loss %.4g -> %.4g in %d steps, rate %g" % (losses[0], end(losses), len(losses), rate)
    if not math.isfinite(losses[0]):
        yield Finding(check, FAILED, found, "the loss is not finite before the first update.", topic="nan")
        return
    ratio = end(losses) / losses[0] if losses[0] else 0.0
    if ratio <= _LEARNED:
        yield ok(check, found)
        return
    tried = {}
    for factor in (0.1, 0.01) if not ratio <= _MOVED else (0.1, 10.0):
        net.set_param_values(values)
        tried[factor] = end(train(net, config, feed, rate * factor))
    best = min(tried, key=lambda factor: tried[factor] if math.isfinite(tried[factor]) else math.inf)
    helped = tried[best] < 0.8 * (end(losses) if math.isfinite(end(losses)) else losses[0]) and tried[best] < losses[0]
    if not math.isfinite(end(losses)) or ratio > 1.1 or (helped and best < 1):
        text = "the learning rate %g is too large: the loss goes from %.4g to %.4g." % (rate, losses[0], end(losses))
        if helped:
            text += " With learning_rate = %g it falls to %.4g." % (rate * best, tried[best])
        yield Finding(check, FAILED, found, text, topic="learning-rate")
    elif helped:
        text = "the loss falls slowly. With learning_rate = %g it falls to %.4g." % (rate * best, tried[best])
        yield Finding(check, WARNING, found, text, topic="learning-rate")
    else:
        text = (
            "the loss does not get below %.0f %% of its start, nor with other learning rates; it stalls at step %d. "
            "The targets may have nothing to do with the features, dropout may be too high, or the network too small."
            % (100 * ratio, stall(losses))
        )
        yield Finding(check, WARNING if ratio < _MOVED else FAILED, found, text, topic="learning-rate")


def train(net: Network, config: Config, feed: Mapping[str, Any], rate: float) -> list[float]:
    """Return the objective before each update; a loss that is not finite is the last one."""
    trainer = StepTrainer(net, config)
    losses: list[float] = []
    begin = time.monotonic()
    while len(losses) < STEPS and (time.monotonic() < begin + _MOST_SECONDS or len(losses) < 2):
        try:
            losses.append(float(trainer.step(feed, learning_rate=rate).total_loss))
        except (NonFiniteError, DataError):  # also a loss that jumps
            losses.append(math.nan)
        if not math.isfinite(losses[-1]):
            break
    return losses


def end(losses: list[float]) -> float:
    """Return the mean of the last losses; NaN if one is not finite."""
    return float(np.mean(losses[-_LAST:]))


def stall(losses: list[float]) -> int:
    """Return the last step that improved the loss by more than 1 %."""
    best, last = losses[0], 0
    for step, loss in enumerate(losses):
        if loss < 0.99 * best:
            best, last = loss, step
    return last
