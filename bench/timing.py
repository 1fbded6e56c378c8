"""Times two sides of a comparison in turn."""

from __future__ import annotations

import time
from typing import Any, Callable

import numpy


def in_turn(first: Callable[[], Any], second: Callable[[], Any], rounds: int, *, cpu: bool = False) -> numpy.ndarray:
    """Return seconds [rounds, 2]; each round runs both sides.

    :param cpu: count the CPU seconds of this process, for a machine with other load
    """
    clock = time.process_time if cpu else time.perf_counter
    times = numpy.zeros((rounds, 2))
    for times_of_round in times:
        for side, step in enumerate((first, second)):
            start = clock()
            step()
            times_of_round[side] = clock() - start
    return times
