"""Keeps the copies that this process uses from being removed: renews the time of their last use while it runs."""

from __future__ import annotations

import contextlib
import os
import threading

_EVERY_SECONDS = 1800.0  # far below the shortest age at which a copy is removed

_used: dict[str, None] = {}
_threads: dict[int, threading.Thread] = {}  # by process: a forked one has none


def note_use(path: str) -> None:
    """Set the time of a file to now, also from time to time until the process ends."""
    _touch(path)
    _used[path] = None
    if os.getpid() not in _threads:
        thread = threading.Thread(target=_renew_forever, name="file-cache", daemon=True)
        _threads[os.getpid()] = thread
        thread.start()


def renew() -> None:
    """Set the time of all files in use to now."""
    for path in list(_used):
        _touch(path)


def _renew_forever() -> None:
    pause = threading.Event()
    while not pause.wait(_EVERY_SECONDS):
        renew()


def _touch(path: str) -> None:
    with contextlib.suppress(OSError):  # removed by hand
        os.utime(path)
