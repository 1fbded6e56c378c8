"""Disk errors that may be transient, and retries for them."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import Callable

#: Seconds to wait before each further attempt.
RETRY_WAITS: tuple[float, ...] = (2.0, 10.0)
_PASSING = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN])


def may_pass(exc: OSError) -> bool:
    """Return whether the error may be transient: lack of space, or a hiccup of a network file system."""
    return exc.errno in _PASSING


def retried(job: Callable[[], None], waits: Sequence[float] = RETRY_WAITS) -> None:
    """Run a job that writes; retry a few times after an error that may be transient.

    :param waits: seconds to wait before each further attempt
    :raises OSError: the last error of the job
    """
    for wait in waits:
        try:
            job()
            return
        except OSError as exc:
            if not may_pass(exc):
                raise
        time.sleep(wait)
    job()
