"""Scores and errors of a pass over a dataset: sums over the batches, finally divided by frames or sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Optional

from returnn_tf.engine.support.step_result import StepResult

COST, ERROR, EXP = "cost:", "error:", ":exp"


class Scores:
    """Accumulates the results of all batches of a pass.

    :param normalized: losses whose value is a mean over the batch already (``use_normalized_loss``)
    :param with_exp: also compute the exponential of each score (``calculate_exp_loss``), e.g. the perplexity
    :param sums: of another instance, to continue from
    """

    def __init__(
        self,
        normalized: Iterable[str] = (),
        *,
        with_exp: bool = False,
        sums: Optional[Mapping[str, Mapping[str, float]]] = None,
    ) -> None:
        self._normalized: frozenset[str] = frozenset(normalized)
        self._with_exp = with_exp
        self._losses: dict[str, float] = dict((sums or {}).get("losses", {}))
        self._errors: dict[str, float] = dict((sums or {}).get("errors", {}))
        self._counts: dict[str, float] = dict((sums or {}).get("counts", {}))

    def sums(self) -> dict[str, dict[str, float]]:
        """Return a copy of the sums, by kind and loss; another instance can continue from them exactly."""
        return {"losses": dict(self._losses), "errors": dict(self._errors), "counts": dict(self._counts)}

    def add(self, result: StepResult) -> None:
        """Add the result of one batch."""
        for name, count in result.counts.items():
            self._counts[name] = self._counts.get(name, 0.0) + count
        for name, loss in result.losses.items():
            factor = result.counts[name] if name in self._normalized else 1.0
            self._losses[name] = self._losses.get(name, 0.0) + loss * factor
        for name, error in result.errors.items():
            self._errors[name] = self._errors.get(name, 0.0) + error

    def scores(self) -> dict[str, float]:
        """Return ``cost:<layer>`` -> mean loss per frame or sequence."""
        found = {COST + name: self._mean(value, name) for name, value in self._losses.items()}
        if self._with_exp:
            found.update({name + EXP: _exp(value) for name, value in list(found.items())})
        return found

    def errors(self) -> dict[str, float]:
        """Return ``error:<layer>`` -> mean error per frame, label or sequence."""
        return {ERROR + name: self._mean(value, name) for name, value in self._errors.items()}

    def _mean(self, value: float, name: str) -> float:
        count = self._counts.get(name, 0.0)
        return value / count if count else float("nan")


def added_sums(parts: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the total of the sums of several `Scores`."""
    total: dict[str, dict[str, float]] = {}
    for part in parts:
        for kind, values in part.items():
            of_kind = total.setdefault(kind, {})
            for name, value in values.items():
                of_kind[name] = of_kind.get(name, 0.0) + value
    return total


def batch_means(result: StepResult, normalized: Iterable[str] = ()) -> dict[str, float]:
    """Return ``cost:<layer>`` and ``error:<layer>`` of a single batch, for the log line of a step."""
    scores = Scores(normalized)
    scores.add(result)
    return {**scores.scores(), **scores.errors()}


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else float("inf")
