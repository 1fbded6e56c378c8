"""Locks on files between processes: they end with the process; Windows and some network file systems have none."""

from __future__ import annotations

import errno
import os
from typing import IO, Any, Optional, Union

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None


def lock(file: Union[int, IO[Any]], *, wait: bool = False) -> None:
    """Lock an open file or folder until it is closed.

    :param wait: wait for the process that holds the lock
    :raises BlockingIOError: another process holds it
    :raises OSError: there are no locks on this system or file system
    """
    if fcntl is None:
        raise OSError(errno.ENOLCK, "this system has no file locks")
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError as exc:  # of some network file systems
        raise BlockingIOError(*exc.args) from None


def has_name(path: str, handle: Optional[int]) -> bool:
    """Return whether an open file still has its name; True if it can't be opened here."""
    try:
        return handle is None or os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
