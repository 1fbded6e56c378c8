"""The rows of the benchmark "rnn_benchmarks" (arXiv 1806.01818), and RETURNN's 5 x 500 BLSTM. numpy only."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np
import workers

GATES = {"lstm": 4, "gru": 3}
LABELS = 10
RATE = 1e-3


@dataclass(frozen=True)
class Row:
    """A network and its batch.

    :param layers: number of layers
    :param bidirectional: two directions, concatenated
    :param loss: "last": cross-entropy on the last frame; "frame": on each frame; "ctc"
    :param unit: "lstm" or "gru"
    :param shortest: length of the shortest sequence, as a part of the frames; 1.0 is a dense batch
    """

    batch: int
    frames: int
    dim: int = 123
    hidden: int = 320
    layers: int = 1
    bidirectional: bool = False
    loss: str = "last"
    shortest: float = 1.0
    unit: str = "lstm"

    def gflop(self) -> float:
        """Return multiply-adds x 2 of a training step in 1e9, without the gradient of the input and without padding."""
        frames = int(self.lengths().sum())
        total, dim = 0, self.dim
        for layer in range(self.layers):
            directions = 2 if self.bidirectional else 1
            per_frame = 3 * (dim + self.hidden) - (dim if layer == 0 else 0)
            total += directions * 2 * frames * GATES[self.unit] * self.hidden * per_frame
            dim = directions * self.hidden
        return total / 1e9

    def lengths(self) -> np.ndarray:
        """Return the lengths, int32 [batch]."""
        return np.linspace(self.frames, self.frames * self.shortest, self.batch).astype("int32")

    def data(self) -> dict[str, np.ndarray]:
        """Return x [batch, frames, dim], lengths, labels [batch, ...] as the loss needs them, label_lengths (ctc)."""
        rng = np.random.RandomState(1)
        shape = {"last": (self.batch,), "frame": (self.batch, self.frames), "ctc": (self.batch, self.frames // 20)}
        return {
            "x": rng.normal(size=(self.batch, self.frames, self.dim)).astype("float32"),
            "lengths": self.lengths(),
            "labels": rng.randint(0, LABELS, shape[self.loss]).astype("int32"),
            "label_lengths": np.full(self.batch, self.frames // 20, "int32"),
        }


ROWS = {
    "ce-short": Row(64, 100),
    "ce-long": Row(32, 1000),
    "ce-long-4": Row(32, 1000, layers=4, bidirectional=True),
    "ctc-long-4": Row(32, 1000, layers=4, bidirectional=True, loss="ctc", shortest=0.5),
    "gru-short": Row(64, 100, unit="gru"),
    "gru-long": Row(32, 1000, unit="gru"),
    "blstm-5x500": Row(40, 50, dim=40, hidden=500, layers=5, bidirectional=True, loss="frame"),
}


def serve(make_step: Callable[[Row], Callable[[], Any]]) -> None:
    """Run a worker with one step: that of the row which the command line names, with a part of its frames.

    Arguments: the row, and a number n: the sequences are cut to 1 / n of their frames.
    """
    row = ROWS[sys.argv[1]]
    part = replace(row, frames=row.frames // int(sys.argv[2]))
    workers.serve(lambda: {"step": make_step(part)})
