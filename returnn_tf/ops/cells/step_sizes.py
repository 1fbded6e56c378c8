"""Initial step sizes of state spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.ops.initializers import Initializer


def log_steps(least: float, most: float) -> Initializer:
    """Return an initialiser with the logarithms of step sizes, uniform from those of ``least`` and ``most``."""

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        return rng.uniform(np.log(least), np.log(most), shape)

    return draw


def step_biases(least: float, most: float) -> Initializer:
    """Return an initialiser with biases whose softplus is a step size, log-uniform from ``least`` to ``most``."""
    draw_logs = log_steps(least, most)

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        steps = np.exp(draw_logs(shape, rng))
        biases: NDArray[Any] = steps + np.log(-np.expm1(-steps))
        return biases

    return draw
