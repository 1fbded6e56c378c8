"""Update rules without a recorded run, against numpy; several dtypes; every registered optimizer descends."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.engine.update.optimizers import OPTIMIZERS, create_optimizer, optimizer_names
from returnn_tf.util.lazy_tf import tf

RATE = 0.05
START = np.random.RandomState(0).randn(2, 3)
GRADS = [np.random.RandomState(step + 1).randn(2, 3) for step in range(5)]


def updated(options: dict[str, Any], dtype: str = "float64") -> np.ndarray:
    optimizer = create_optimizer(options, where="optimizer")
    variable = tf.Variable(START.astype(dtype))
    optimizer.build({"w": variable}, "optimizer_0")

    @tf.function(autograph=False)
    def step(grad: Any) -> None:
        optimizer.apply([("w", grad, variable)], tf.constant(RATE, "float64"))

    for grad in GRADS:
        step(tf.constant(grad.astype(dtype)))
    assert optimizer.state()["optimizer_0/iterations"].numpy() == len(GRADS)
    return np.asarray(variable.numpy(), "float64")


def moments(b1: float = 0.9, b2: float = 0.999) -> list[Any]:
    """Return (t, gradient, m, v) of each update."""
    m, v, rows = np.zeros((2, 3)), np.zeros((2, 3)), []
    for t, grad in enumerate(GRADS, 1):
        m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
        rows.append((t, grad, m, v))
    return rows


def adamw() -> np.ndarray:
    w = START
    for t, _, m, v in moments():
        w = w * (1 - RATE * 0.1) - RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-3)
    return w


def amsgrad() -> np.ndarray:
    w, largest = START, np.zeros((2, 3))
    for t, _, m, v in moments():
        largest = np.maximum(largest, v)
        w = w - RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(largest) + 1e-3)
    return w


def adamax() -> np.ndarray:
    w, largest = START, np.zeros((2, 3))
    for t, grad, m, _ in moments():
        largest = np.maximum(0.999 * largest, abs(grad))
        w = w - RATE / (1 - 0.9**t) * m / (largest + 1e-3)
    return w


def nadam() -> np.ndarray:
    w, product = START, 1.0
    for t, grad, m, v in moments():
        now, after = (0.9 * (1 - 0.5 * 0.96 ** (0.004 * k)) for k in (t, t + 1))
        product *= now
        step = (1 - now) * grad / (1 - product) + after * m / (1 - product * after)
        w = w - RATE * step / (np.sqrt(v / (1 - 0.999**t)) + 1e-3)
    return w


def nesterov() -> np.ndarray:
    w, velocity = START, np.zeros((2, 3))
    for grad in GRADS:
        velocity = 0.9 * velocity - RATE * grad
        w = w + 0.9 * velocity - RATE * grad
    return w


def rmsprop() -> np.ndarray:
    w, square, step = START, np.ones((2, 3)), np.zeros((2, 3))
    for grad in GRADS:
        square = 0.8 * square + 0.2 * grad**2
        step = 0.5 * step + RATE * grad / np.sqrt(square + 1e-3)
        w = w - step
    return w


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"class": "adamw", "weight_decay": 0.1, "epsilon": 1e-3}, adamw),
        ({"class": "amsgrad", "epsilon": 1e-3}, amsgrad),
        ({"class": "adamax", "count_updates": True, "epsilon": 1e-3}, adamax),
        ({"class": "nadamkeras", "count_updates": True, "epsilon": 1e-3}, nadam),
        ({"class": "sgd", "momentum": 0.9, "nesterov": True}, nesterov),
        ({"class": "rmsprop", "momentum": 0.5, "decay": 0.8, "epsilon": 1e-3}, rmsprop),
    ],
    ids=lambda value: value["class"] if isinstance(value, dict) else "",
)
def test_update_rule(options: dict[str, Any], expected: Callable[[], np.ndarray]) -> None:
    np.testing.assert_allclose(updated(options), expected(), rtol=1e-6)


@pytest.mark.parametrize("name", optimizer_names())
def test_every_optimizer_changes_variables_of_any_precision_in_the_same_way(name: str) -> None:
    options = {"class": name, "epsilon": 1e-3} if hasattr(OPTIMIZERS.find(name), "epsilon") else {"class": name}
    wide, narrow = updated(options), updated(options, "float32")
    assert np.abs(wide - START).min() > 0
    np.testing.assert_allclose(wide, narrow, rtol=1e-3, atol=1e-5)
