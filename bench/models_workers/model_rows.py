"""The models of the benchmark: sizes, batches, and the work of a training step. numpy only."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np
import workers

DROPOUT = 0.1
RATE = 1e-4
KERNEL = 31
"""Frames of the Conformer's filters."""
FLAGS = ("small", "bfloat16", "compiled")
"""Arguments of a worker; only PyTorch knows ``compiled``."""


@dataclass(frozen=True)
class Model:
    """A network and its batch.

    :param kind: "transformer", "conformer", "attention", "feed-forward", "ctc" or "lm"
    :param frames: of the longest sequence; of "lm": words
    :param dim: features of a frame; of "lm": of the embedding
    :param size: units of a layer (of one direction)
    :param hidden: units of the feed forward parts; of "attention": those of decoder and readout
    :param shortest: length of the shortest sequence, as a part of the frames; 1.0 is a dense batch
    :param labels: without the blank of "ctc"
    :param bfloat16: mixed precision, in each framework by its own means
    """

    kind: str
    batch: int
    frames: int
    dim: int
    size: int
    layers: int
    labels: int
    hidden: int = 0
    heads: int = 0
    shortest: float = 1.0
    bfloat16: bool = False

    def lengths(self) -> np.ndarray:
        """Return the lengths, int32 [batch]."""
        return np.linspace(self.frames, self.frames * self.shortest, self.batch).astype("int32")

    def label_lengths(self) -> np.ndarray:
        """Return int32 [batch]: one label per frame, or one per 8 frames ("attention" and "ctc")."""
        return self.lengths() // 8 if self.kind in ("attention", "ctc") else self.lengths()

    def data(self) -> dict[str, np.ndarray]:
        """Return x [batch, frames, dim] (words [batch, frames]), lengths, labels [batch, labels], label_lengths."""
        rng = np.random.RandomState(1)
        shape = (self.batch, self.frames)
        words = self.kind == "lm"
        x = rng.randint(0, self.labels, shape) if words else rng.normal(size=(*shape, self.dim))
        label_lengths = self.label_lengths()
        return {
            "x": x.astype("int32" if words else "float32"),
            "lengths": self.lengths(),
            "labels": rng.randint(0, self.labels, (self.batch, label_lengths.max())).astype("int32"),
            "label_lengths": label_lengths,
        }

    def gflop(self) -> float:
        """Return multiply-adds x 2 of the products of a step in 1e9, without padding and the gradient of the input."""
        frames, squares = int(self.lengths().sum()), int((self.lengths().astype("int64") ** 2).sum())
        n, ff = self.size, self.hidden
        if self.kind == "attention":
            return 6e-9 * self._attention(frames)
        if self.kind in ("ctc", "lm"):
            inputs = [self.dim if self.kind == "lm" else self.dim / 1.5, *[self._outputs()] * (self.layers - 1)]
            directions = 1 if self.kind == "lm" else 2
            return 6e-9 * frames * (sum(directions * 4 * n * (i + n) for i in inputs) + self._outputs() * self.labels)
        if self.kind == "feed-forward":
            return 6e-9 * frames * (self.dim * n / 1.5 + (self.layers - 1) * n * n + n * self.labels)
        parts = 4 * n * n + (2 if self.kind == "transformer" else 4) * n * ff
        parts += 3 * n * n + KERNEL * n if self.kind == "conformer" else 0
        return 6e-9 * (frames * (self.layers * parts + self.dim * n / 1.5 + n * self.labels) + 2 * self.layers * n * squares)  # fmt: skip  # noqa: E501

    def _outputs(self) -> int:
        return self.size * (1 if self.kind == "lm" else 2)

    def _attention(self, frames: int) -> float:
        steps, n, m, enc = int(self.label_lengths().sum()), self.size, self.hidden, 2 * self.size
        pairs = int((self.lengths().astype("int64") * self.label_lengths()).sum())
        encoder = 8 * n * (self.dim / 1.5 + n) + (self.layers - 1) * 8 * n * (enc + n) + enc * enc
        step = 4 * m * (m + enc + m) + m * enc + (m + enc + m) * m + m * self.labels
        return frames * encoder + steps * step + pairs * 2 * enc


ROWS = {
    "transformer": Model("transformer", 16, 200, 40, 512, 6, 1000, hidden=2048, heads=8),
    "conformer": Model("conformer", 16, 200, 40, 256, 6, 1000, hidden=1024, heads=4),
    "attention": Model("attention", 16, 200, 40, 256, 2, 1000, hidden=512, shortest=0.5),
    "feed-forward": Model("feed-forward", 20, 200, 440, 2048, 6, 9001),
    "blstm-ctc": Model("ctc", 16, 400, 40, 500, 5, 80, shortest=0.5),
    "lstm-lm": Model("lm", 20, 40, 512, 512, 2, 50000, shortest=0.5),
    "transformer-ragged": Model("transformer", 16, 200, 40, 512, 6, 1000, hidden=2048, heads=8, shortest=0.3),
    "transformer-long": Model("transformer", 2, 1600, 40, 512, 6, 1000, hidden=2048, heads=8),
}


def small(model: Model) -> Model:
    """Return the same network with a few units, for tests."""
    heads = 2 if model.heads else 0
    hidden = 16 if model.hidden else 0
    return replace(model, batch=3, frames=16, dim=5, size=8, layers=2, labels=11, hidden=hidden, heads=heads)


def serve(make_steps: Callable[[Model], dict[str, Callable[[], Any]]]) -> None:
    """Run a worker.

    Arguments: the row, n, and some of `FLAGS`; the batch has 1 / n of the row's sequences. Its steps are "step" (a
    whole training step, the batch given as tensors), "forward" (the loss in training), "gradients" (forward and
    backward) and "input" (arrays to tensors). They are made when they are first called, so that the memory of a
    process that only runs "step" is that of training.
    """
    model = ROWS[sys.argv[1]]
    model = replace(model, batch=max(1, model.batch // int(sys.argv[2])), bfloat16=flag("bfloat16"))
    model = small(model) if flag("small") else model
    workers.serve(lambda: make_steps(model), warm_up=False)


def flag(name: str) -> bool:
    """Return whether a flag is among the arguments of a worker."""
    assert name in FLAGS and set(sys.argv[3:]) <= set(FLAGS)
    return name in sys.argv[3:]


def threads() -> int:
    """Return the number of threads that a worker may use."""
    return int(os.environ["BENCH_THREADS"])
