"""Memory of the backward pass of a loop: an attention decoder as a config, and the same written by hand.

    python bench/loop_memory.py [--rounds N]

Each figure is the growth of the peak memory of a fresh process (its resident set) by a training step on a large batch,
after the step was traced and run on a tiny one; the sides take turns, medians. Asked: at most 1.1 times that by hand.
The third row is that of the option checkpoint_steps, which computes each step again in the backward pass.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from attention_model import Sizes, TrainedByHand, config, feed, set_random_params, tensors

import returnn_tf

ASKED = 1.1
LARGE = Sizes(16, 60, 160, 64, 256, 32, 128, 64, 50)
SIDES: dict[str, dict[str, Any]] = {"by hand": {}, "framework": {}, "checkpoint_steps": {"checkpoint_steps": True}}


def peak_memory() -> float:
    """Return the largest resident set of this process so far, in MiB.

    Unlike `ru_maxrss` it does not start with that of the process which started this one.
    """
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024.0


def growth(side: str, s: Sizes) -> float:
    """Return the peak MiB of a step above those before it."""
    settings = config(s, **SIDES[side])
    net = returnn_tf.Network.from_config(settings, train=True)
    set_random_params(net)
    by_hand = TrainedByHand(s, net.get_param_values())
    trainer = returnn_tf.Trainer(net, settings)

    def step(sizes: Sizes) -> None:
        data = feed(sizes)
        if side == "by hand":
            by_hand.step(*tensors(data)).numpy()
        else:
            trainer.step(data)

    step(dataclasses.replace(s, batch=2, steps=3, frames=4))
    before = peak_memory()
    step(s)
    return peak_memory() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each side")
    parser.add_argument("--side", choices=list(SIDES), help="print the figure of one process")
    args = parser.parse_args()
    if args.side:
        print(growth(args.side, LARGE))
        return
    figures: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(args.rounds):
        for side in SIDES:
            out = subprocess.run([sys.executable, __file__, "--side", side], check=True, capture_output=True, text=True)
            figures[side].append(float(out.stdout.split()[-1]))
    medians = {side: float(np.median(values)) for side, values in figures.items()}
    print("%-28s %10s %7s %7s" % ("memory of a training step", "MiB", "ratio", "asked"))
    for side, value in medians.items():
        asked = "<= %.1f" % ASKED if side == "framework" else ""
        print("%-28s %10.0f %7.2f %7s" % (side, value, value / medians["by hand"], asked))


if __name__ == "__main__":
    main()
