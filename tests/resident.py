"""The memory of this process, for tests of what is kept."""

from __future__ import annotations

import pathlib

import pytest

_STATM = pathlib.Path("/proc/self/statm")

#: Marks a test that calls `resident_memory`.
needs_resident_memory = pytest.mark.skipif(not _STATM.exists(), reason="the system does not tell of memory")


def resident_memory() -> int:
    """Return the bytes that this process has in memory now."""
    return int(_STATM.read_text().split()[1]) * 4096
