"""Means over a pass from sums over batches."""

from __future__ import annotations

import math
from typing import Any

import pytest

from returnn_tf.engine.support.scores import Scores, batch_means
from returnn_tf.engine.support.step_result import StepResult


def result(loss: float, count: float, error: Any = None) -> StepResult:
    errors = {} if error is None else {"a": error}
    return StepResult(loss, losses={"a": loss}, errors=errors, counts={"a": count})


def test_sums_are_divided_by_all_frames() -> None:
    scores = Scores()
    scores.add(result(10.0, 4, 1.0))
    scores.add(result(2.0, 20, 5.0))
    assert scores.scores() == {"cost:a": 0.5} and scores.errors() == {"error:a": 0.25}


def test_losses_which_are_means_already_are_weighted_by_their_frames() -> None:
    scores = Scores(["a"])
    scores.add(result(1.0, 30))
    scores.add(result(5.0, 10))
    assert scores.scores() == {"cost:a": 2.0} and scores.errors() == {}


def test_exponential_of_the_scores() -> None:
    scores = Scores(with_exp=True)
    scores.add(result(2.0, 1))
    assert scores.scores() == {"cost:a": 2.0, "cost:a:exp": pytest.approx(math.exp(2.0))}
    scores.add(result(1e5, 1))
    assert scores.scores()["cost:a:exp"] == float("inf")


def test_an_error_without_loss_and_a_batch_without_frames() -> None:
    only_error = StepResult(0.0, errors={"a": 3.0}, counts={"a": 6.0})
    assert batch_means(only_error) == {"error:a": 0.5}
    assert math.isnan(batch_means(result(1.0, 0))["cost:a"])
