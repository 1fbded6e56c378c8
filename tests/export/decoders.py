"""The decoders of ``demos/decoder``, built and run: their options, input and output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from tests import compiling

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "demos", "decoder")


def build(language: str, to: str) -> str:
    """Build a decoder and return its path.

    :param language: "c" or "cpp"
    """
    variable, compiler = {"c": ("CC", "cc"), "cpp": ("CXX", "c++")}[language]
    caching = "%s=%s -S %s %s" % (variable, sys.executable, compiling.__file__, os.environ.get(variable, compiler))
    command = ["make", "-s", "-C", os.path.join(FOLDER, language), "PYTHON=" + sys.executable, "OUT=" + to, caching]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return os.path.join(to, {"c": "decoder_c", "cpp": "decoder"}[language])


def as_text(sequences: Mapping[str, np.ndarray]) -> str:
    """Return sequences as the programs read them; word ids [time] have dim 0."""
    lines = []
    for tag, values in sequences.items():
        rows = values.reshape(len(values), -1)
        lines.append("%s %d %d" % (tag, len(values), 0 if values.ndim == 1 else values.shape[1]))
        lines += [" ".join("%.9g" % value for value in row) for row in rows]
    return "\n".join(lines) + "\n"


def run(program: Sequence[str], sequences: Mapping[str, np.ndarray]) -> list[list[str]]:
    """Return the words of the lines that a program prints."""
    done = subprocess.run(program, input=as_text(sequences), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split() for line in done.stdout.splitlines()]


def outputs(program: Sequence[str], sequences: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the frames that a program prints: tag -> [time, dim]."""
    lines = run(program, sequences)
    found = {}
    while lines:
        (tag, frames, _), lines = lines[0], lines[1:]
        rows, lines = lines[: int(frames)], lines[int(frames) :]
        found[tag] = np.array(rows, np.float32)
    return found


def cut(batch: np.ndarray, lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the sequences of a padded batch, with tags."""
    return {"seq-%d" % i: row[:length] for i, (row, length) in enumerate(zip(batch, lengths))}
