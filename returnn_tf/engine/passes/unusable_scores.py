"""Evaluations with NaN or Inf losses or errors: the sequences responsible, and a warning for each pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from returnn_tf.config import DataError
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support.scores import COST, ERROR
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.logging.log import log

_MAX_TAGS = 20


class UnusableScores:
    """Collects the batches of one evaluation with non-finite losses or errors.

    :param phase: text for the message, e.g. ``'dev' eval epoch 3``
    """

    def __init__(self, phase: str):
        self._phase = phase
        self._count = 0
        self._num_batches = 0
        self._values: dict[str, str] = {}  # loss or error -> its first value that is not finite
        self._in_data: list[str] = []
        self._tags: list[str] = []

    def add(self, batch: Any, result: StepResult) -> StepResult:
        """Record the result of a batch, and return it."""
        self._num_batches += 1
        named = {COST + name: value for name, value in result.losses.items()}
        named.update({ERROR + name: value for name, value in result.errors.items()})
        bad = {name: str(value) for name, value in named.items() if not math.isfinite(value)}
        if bad:
            self._count += 1
            self._values = {**bad, **self._values}
            self._in_data += _bad_inputs(batch)
            self._tags += [str(tag) for tag in batch.seq_tags]
        return result

    def warn(self, world: World) -> None:
        """Log one warning for the pass if any process had such batches."""
        own = {"bad": self._count, "all": self._num_batches, "values": self._values}
        own.update(in_data=self._in_data[: _MAX_TAGS + 1], tags=self._tags[: _MAX_TAGS + 1])
        parts = world.gather(own)
        count = sum(part["bad"] for part in parts)
        if not count or not world.is_chief:
            return
        values = {name: text for part in parts for name, text in part["values"].items()}
        in_data, tags = ([entry for part in parts for entry in part[name]] for name in ("in_data", "tags"))
        if in_data:
            cause = "The data itself has NaN or Inf: %s" % _listed(in_data)
        else:
            cause = "The data itself is finite. Sequences: %s" % _listed(tags)
        log.warn(
            "%s: %s in %d of %d batches, so the score can't be used; if it decides about the learning rate, it "
            "counts as worse than any other. %s"
            % (
                self._phase,
                ", ".join("%s is %s" % item for item in sorted(values.items())),
                count,
                sum(part["all"] for part in parts),
                cause,
            )
        )


def check_usable(results: Any) -> None:
    """Check the scores of a task that has no other result.

    :param results: name of the dataset -> pass result with scores and errors
    :raises DataError: one of them is not finite
    """
    for name, result in results.items():
        for key, value in {**result.scores, **result.errors}.items():
            if not math.isfinite(value):
                raise DataError(
                    "dataset %r: %s is %s; the warning above names the sequences." % (name, key, value), topic="nan"
                )


def _bad_inputs(batch: Any) -> list[str]:
    """Return ``'data' of seq-3``, ... for the rows of a batch which hold NaN or Inf."""
    found = []
    for key, value in batch.feed.items():
        if np.asarray(value).dtype.kind == "f":
            bad = ~np.isfinite(value).reshape(len(value), -1).all(axis=1)
            rows = [row for row, _ in batch.rows]
            found += ["%r of %s" % (key, tag) for row, tag in zip(rows, batch.seq_tags) if bad[row]]
    return found


def _listed(entries: list[str]) -> str:
    return ", ".join(entries[:_MAX_TAGS]) + (", ..." if len(entries) > _MAX_TAGS else "")
