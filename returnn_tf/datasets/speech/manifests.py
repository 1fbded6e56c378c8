"""What the manifests of several toolkits have in common: paths of audio files, and times."""

from __future__ import annotations

import os
from typing import Any, Optional

from returnn_tf.config.errors import FileDataError, shown
from returnn_tf.datasets.files import is_url

#: Larger numbers are no seconds, and would not be integers once in units of 10 ms.
LONGEST = 1e12


def folder_of(path: str) -> str:
    """Return the folder of a file, also of a remote one."""
    return path.rpartition("/")[0] if is_url(path) else os.path.dirname(path)


def joined(folder: str, path: str) -> str:
    """Return a path that may be relative to a folder, one of which may be an address of a remote file."""
    return path if is_url(path) or not folder else os.path.join(folder, path)


def number_of_seconds(value: Any, what: str) -> Optional[float]:
    """Return a time of a manifest; None: it is not given.

    :raises DataError: it is no number of seconds
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LONGEST:
        raise FileDataError("%r is %s, but must be a number of seconds" % (what, shown(value)))
    return float(value)
