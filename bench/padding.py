"""Training steps that skip padding, against the same steps without that, by the share of padding in the batch.

    python bench/padding.py [--row transformer] [--part 4] [--shortest 0.2,0.85,1] [--rounds 5]

The rows are those of bench/models.py; ``--shortest`` are the lengths of the shortest sequence as shares of the longest
one, with lengths evenly between. Times are CPU seconds of whole steps in turn, medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Callable, Optional
from unittest import mock

import numpy as np
from report import table
from timing import in_turn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "models_workers"))

import ours
from model_rows import ROWS, Model, small

from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.util.lazy_tf import tf


def make_step(model: Model, skip_padding: Optional[bool]) -> Callable[[], Any]:
    """A training step with this setting; traced at its first call, which is made here."""
    step = ours.make_steps(model)["step"]
    with mock.patch.object(NetworkSettings, "skip_padding", skip_padding):
        step()
    return step


def compare(model: Model, rounds: int, always: bool) -> list[str]:
    """A line of the table."""
    sides = [make_step(model, setting) for setting in (True if always else None, False)]
    losses = [side() for side in sides]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    times = in_turn(*sides, rounds, cpu=True)
    lengths = model.lengths()
    padding = 100 * (1 - lengths.sum() / (lengths.max() * len(lengths)))
    here, there = 1e3 * np.median(times, axis=0)
    ratio = np.median(times[:, 0] / times[:, 1])
    return ["%.0f %%" % padding, "%.0f" % here, "%.0f" % there, "%.2f" % ratio]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default="transformer")
    parser.add_argument("--part", type=int, default=4, help="take 1 / n of the sequences")
    parser.add_argument("--shortest", default="0.2,0.85,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--always", action="store_true", help="skip_padding = True, also where there is little of it")
    parser.add_argument("--small", action="store_true", help="a few units: whether everything runs")
    args = parser.parse_args(arguments)
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    lines = []
    for shortest in args.shortest.split(","):
        model = replace(ROWS[args.row], shortest=float(shortest))
        model = small(model) if args.small else replace(model, batch=max(1, model.batch // args.part))
        lines.append([args.row, *compare(model, args.rounds, args.always)])
    print(table(["row", "padding", "CPU ms", "all frames", "ratio"], lines))


if __name__ == "__main__":
    main()
