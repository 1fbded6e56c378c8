"""A training step of an attention decoder: as a config, and the same model written by hand with `tf.while_loop`.

    python bench/decoder.py [--rounds N]

Forward, backward and Adam. Both sides begin with the same parameters, and their losses are compared in each of the
first steps. They are timed in turn, so that other load on the machine hits both; the figures are medians over the
rounds, the ratio is that of the two times within a round. Asked: at most 1.15.
"""

from __future__ import annotations

import argparse
from typing import Callable

import numpy as np
from attention_model import Sizes, training_sides
from timing import in_turn

ASKED = 1.15


def check_losses(sides: list[Callable[[], float]], steps: int = 3) -> None:
    """Raise if the losses differ."""
    for _ in range(steps):
        losses = [side() for side in sides]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each side")
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds instead: for a machine with other load")
    args = parser.parse_args()
    sizes = Sizes()
    sides = training_sides(sizes)
    check_losses(sides)
    times = in_turn(sides[0], sides[1], args.rounds, cpu=args.cpu)
    by_hand, framework = 1e3 * np.median(times, axis=0)
    ratio = float(np.median(times[:, 1] / times[:, 0]))
    print("%-28s %10s %10s %7s %7s" % ("training step", "by hand", "framework", "ratio", "asked"))
    print("%-28s %7.0f ms %7.0f ms %7.2f <= %.2f" % ("attention decoder", by_hand, framework, ratio, ASKED))


if __name__ == "__main__":
    main()
