"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from typing import Any, Callable

#: Seconds that a machine under load, or a disk that stalls, may take for anything: only against hanging.
LONG = 60.0


def until(
    condition: Callable[[], Any],
    what: str = "it did not happen",
    seconds: float = LONG,
    *,
    pause: float = 0.01,
    details: Callable[[], str] = str,
) -> None:
    """Wait until the condition holds.

    :param condition: called again and again; it may raise what no waiting mends
    :param what: the error if it never holds
    :param seconds: a limit against hanging, not an expectation
    :param pause: seconds between two calls
    :param details: for the error: logs, for example
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("%s within %.0f s\n%s" % (what, seconds, details()))
        time.sleep(pause)
