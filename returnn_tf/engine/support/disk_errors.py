"""Errors of writing: transient ones, retries, and messages."""

from __future__ import annotations

import errno
import time
from typing import Callable, Union

from returnn_tf.config import ConfigError, DataError
from returnn_tf.util.temporary import NO_SPACE

#: Seconds to wait before each further attempt.
RETRY_WAITS: tuple[float, ...] = (2.0, 10.0)
_PASSING = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN])


def may_pass(exc: OSError) -> bool:
    """Return whether the error may be transient: lack of space, or a hiccup of a network file system."""
    return exc.errno in _PASSING


def not_writable(
    what: str, exc: OSError, fix: str = "Choose another path, or fix its permissions", *, topic: str
) -> Exception:
    """Return the error for a file that can't be written: no mistake of the user if the disk is full.

    :param fix: what to do if the path is wrong
    :param topic: of the error, see `UserError`
    """
    text = "%s can't be written: %s. " % (what, exc.strerror or exc)
    if exc.errno in NO_SPACE:
        again = "%s and run the same command again; or choose another path." % NO_SPACE[exc.errno]
        return DataError(text + again, topic=topic)
    kind: Union[type[ConfigError], type[DataError]] = DataError if may_pass(exc) else ConfigError
    return kind("%s%s." % (text, fix), topic=topic)


def retried(job: Callable[[], None]) -> None:
    """Run a job that writes; retry it after an error that may be transient, see `RETRY_WAITS`.

    :raises OSError: the last error of the job
    """
    for wait in RETRY_WAITS:
        try:
            job()
            return
        except OSError as exc:
            if not may_pass(exc):
                raise
        time.sleep(wait)
    job()
