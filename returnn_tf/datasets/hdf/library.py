"""What the HDF5 library needs help with: locks of network file systems, and strings."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray


def open_unlocked(path: str) -> h5py.File:
    """Open without a lock, since network file systems often have none; unless this process has it open with one."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as exc:
        if "locking flag" not in str(exc):
            raise
        return h5py.File(path, "r")


def strings(value: NDArray[Any]) -> NDArray[Any]:
    """Convert bytes or str to str objects, cut at the first NUL."""
    out = np.empty(value.size, object)
    out[:] = [_text(entry) for entry in value.reshape(-1).tolist()]
    return out.reshape(value.shape)


def return_freed_memory() -> None:
    """Let the C library give back to the system what the HDF5 library has freed: of strings, as much as they take.

    Only glibc has a function for that.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def byte_strings(value: NDArray[Any]) -> list[bytes]:
    """Convert bytes or str to bytes objects, in UTF-8."""
    entries: list[bytes] = value.reshape(-1).tolist()
    if set(map(type, entries)) <= {bytes}:
        return entries
    return [entry if isinstance(entry, bytes) else str(entry).encode("utf8") for entry in entries]


def _text(entry: Any) -> str:
    text = entry.decode("utf8", "replace") if isinstance(entry, bytes) else str(entry)
    return text.split("\0", 1)[0] if "\0" in text else text
