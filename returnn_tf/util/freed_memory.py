"""Memory that a process has freed, but not returned to the system."""

from __future__ import annotations

import ctypes
import os


def return_freed_memory() -> None:
    """Return freed memory to the system; only glibc has a function for that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
