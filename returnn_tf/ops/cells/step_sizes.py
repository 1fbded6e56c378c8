"""Initial step sizes of state spaces."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from returnn_tf.ops.initializers import Initializer


def log_steps(least: float, most: float) -> Initializer:
    """Return an initialiser with the logarithms of step sizes, uniform from those of ``least`` and ``most``."""

    def draw(shape: tuple[int, ...], rng: numpy.random.Generator) -> NDArray[Any]:
        return rng.uniform(numpy.log(least), numpy.log(most), shape)

    return draw


def step_biases(least: float, most: float) -> Initializer:
    """Return an initialiser with biases whose softplus is a step size, log-uniform from ``least`` to ``most``."""
    draw_logs = log_steps(least, most)

    def draw(shape: tuple[int, ...], rng: numpy.random.Generator) -> NDArray[Any]:
        steps = numpy.exp(draw_logs(shape, rng))
        biases: NDArray[Any] = steps + numpy.log(-numpy.expm1(-steps))
        return biases

    return draw
