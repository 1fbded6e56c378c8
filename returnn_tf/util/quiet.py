"""Keeps what libraries write to stderr from their C++ code out of the terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def stderr_to_log() -> Iterator[None]:
    """Send what this process writes to file descriptor 2, of all threads, to the log at its lowest level."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text = file.read().decode("utf8", "replace").strip()
            if text:
                log.debug("%s", text)
