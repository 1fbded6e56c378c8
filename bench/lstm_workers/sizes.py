"""The sizes of the recurrences that are measured by themselves."""

from __future__ import annotations

DIM = 123
"""Features of a frame."""

RECURRENCES = [("lstm", 50, batch, n) for n in (320, 512, 1024) for batch in (32, 64)]
RECURRENCES += [("gru", 50, 32, 320), ("gru", 50, 64, 512)]
"""Unit, frames, batch, units."""

MEMORY = (1000, 32, 320)
"""Frames, batch, units of the recurrence whose memory is measured."""

SINGLE = [(unit, frames, n) for unit, n in (("lstm", 320), ("lstm", 512), ("gru", 320)) for frames in (1, 100)]
"""Unit, frames, units of inference with one sequence."""


def calls(frames: int) -> int:
    """Return how often a step of inference calls its layer: single frames one after the other, as a decoder does."""
    return 50 if frames == 1 else 1


CUBE = 2048


def name_of(unit: str, frames: int, batch: int, n: int) -> str:
    """Return the name of the step."""
    return "%s-%dx%d-%d" % (unit, frames, batch, n)


def products(unit: str, batch: int, n: int) -> list:
    """Return the products of a frame, forward and backward: [(rows, depth, columns)]."""
    if unit == "gru":
        return [(batch, n, 2 * n), (batch, n, n), (batch, n, n), (batch, 2 * n, n)]
    return [(batch, n, 4 * n), (batch, 4 * n, n)]


def gflop(unit: str, frames: int, batch: int, n: int) -> float:
    """Return multiply-adds x 2 of a step, in 1e9."""
    return sum(2e-9 * frames * rows * depth * columns for rows, depth, columns in products(unit, batch, n))
