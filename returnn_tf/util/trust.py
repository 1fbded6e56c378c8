"""Permissions of files that this program relies on."""

from __future__ import annotations

import os
import stat

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def is_ours(path: str) -> bool:
    """Return whether a file or folder is there and only the user, or root, can write to it.

    A link must be the user's or root's, and its target must fulfil the same.
    """
    try:
        link, status = os.lstat(path), os.stat(path)
    except OSError:
        return False
    users = (os.getuid(), 0)
    return link.st_uid in users and status.st_uid in users and not status.st_mode & _OTHERS


def close_to_others(path: str) -> None:
    """Remove the write permission of others from a file or folder of the user, whatever the umask is."""
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~_OTHERS)
