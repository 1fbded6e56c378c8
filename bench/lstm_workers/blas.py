"""The matrix products of the recurrences without the recurrence, and a large one, by PyTorch or else by numpy.

With PyTorch also its own layers on single sequences.
"""

from __future__ import annotations

import os
from typing import Any, Callable

import numpy as np
import workers
from sizes import CUBE, DIM, RECURRENCES, SINGLE, calls, name_of, products

try:
    import torch
except ImportError:
    torch = None


def random_matrix(rows: int, columns: int) -> Any:
    """Return a matrix as the library takes it."""
    matrix = np.random.RandomState(1).rand(rows, columns).astype("float32")
    return torch.from_numpy(matrix) if torch else matrix


def product(shapes: list[tuple[int, int, int]], repeats: int) -> Callable[[], None]:
    """Compute each of the products ``repeats`` times."""
    pairs = [(random_matrix(rows, depth), random_matrix(depth, columns)) for rows, depth, columns in shapes]
    results = [left @ right for left, right in pairs]
    multiply = torch.mm if torch else np.matmul

    def step() -> None:
        for _ in range(repeats):
            for (left, right), result in zip(pairs, results):
                multiply(left, right, out=result)

    return step


def inference(unit: str, frames: int, n: int) -> Callable[[], None]:
    """Return the forward step of a layer on one sequence."""
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[unit](DIM, n)
    x, h = torch.randn(frames, 1, DIM), torch.zeros(1, 1, n)
    state = (h, h) if unit == "lstm" else h

    def step() -> None:
        with torch.inference_mode():
            for _ in range(calls(frames)):
                layer(x, state)

    return step


def make_steps() -> dict[str, Callable[[], Any]]:
    """Return all steps."""
    steps: dict[str, Callable[[], Any]] = {"cube": product([(CUBE, CUBE, CUBE)], 1)}
    for unit, frames, batch, n in RECURRENCES:
        steps[name_of(unit, frames, batch, n)] = product(products(unit, batch, n), frames)
    if torch:
        torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
        steps.update({"single-" + name_of(unit, t, 1, n): inference(unit, t, n) for unit, t, n in SINGLE})
    return steps


workers.serve(make_steps)
