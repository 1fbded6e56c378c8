"""Times two sides of a comparison in turn; the command of a benchmark that compares them for several cases."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

import numpy as np
from report import table

from returnn_tf.util.lazy_tf import tf


def in_turn(first: Callable[[], Any], second: Callable[[], Any], rounds: int, *, cpu: bool = False) -> np.ndarray:
    """Return seconds [rounds, 2]; each round runs both sides.

    :param cpu: count the CPU seconds of this process, for a machine with other load
    """
    clock = time.process_time if cpu else time.perf_counter
    times = np.zeros((rounds, 2))
    for times_of_round in times:
        for side, step in enumerate((first, second)):
            start = clock()
            step()
            times_of_round[side] = clock() - start
    return times


def run_cases(
    description: Optional[str],
    header: Sequence[str],
    compare: Callable[..., list[str]],
    cases: Iterable[tuple[Any, ...]],
    arguments: Optional[Sequence[str]] = None,
    *,
    rounds: int = 7,
) -> None:
    """Run the command of a benchmark, which prints a table with a line for each case.

    :param description: for ``--help``
    :param compare: called with the entries of a case and the number of rounds; gives the line
    :param arguments: of the command line; default: those of this process
    :param rounds: how many there are by default
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(arguments)
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    print(table(header, [compare(*case, args.rounds) for case in cases]))
