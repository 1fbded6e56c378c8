"""Arrays in memory that a loading process shares with its parent: padded there, used here, never copied.

Each large array has its own anonymous file (Linux: ``memfd_create``), zero at first, which needs no name and no
clean-up: the kernel frees it when both processes have dropped it, however they end. The parent opens it through
``/proc`` while the loading process keeps it open, which it does until the parent has taken the batch.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import sys
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.util.host_tensors import SharedMemory

#: Bytes of an array for which it is worthwhile.
MIN_BYTES = 2**18


@dataclasses.dataclass(frozen=True)
class SharedArray:
    """The description by which the parent maps an array.

    :param fd: file descriptor in the loading process
    """

    fd: int
    shape: tuple[int, ...]
    dtype: str


Entry = Union[NDArray[Any], SharedArray]


def can_share(pid: int) -> bool:
    """Return whether this process can open files of a loading process."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and os.access("/proc/%d/fd" % pid, os.R_OK | os.X_OK)


def shared_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros: in shared memory, if it is large."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size < MIN_BYTES:
        return np.zeros(shape, dtype)
    fd = os.memfd_create("batch")
    try:
        os.ftruncate(fd, size)
        memory = _memory(fd, size)
    except BaseException:
        os.close(fd)
        raise
    memory.fd = fd
    return np.ndarray(shape, dtype, buffer=memory)


def detached(feed: dict[str, NDArray[Any]]) -> tuple[dict[str, Any], list[int]]:
    """Return a feed with its arrays in shared memory as descriptions, and their file descriptors, to be closed."""
    entries: dict[str, Any] = {}
    fds: list[int] = []
    for key, array in feed.items():
        memory = array.base
        entries[key] = array
        if isinstance(memory, SharedMemory) and memory.fd is not None:
            if array.nbytes == len(memory) and array.flags.c_contiguous:
                entries[key] = SharedArray(memory.fd, array.shape, array.dtype.str)
            fds.append(memory.fd)
            memory.fd = None
    return entries, fds


def attached(feed: dict[str, Entry], pid: int) -> dict[str, NDArray[Any]]:
    """Return a feed with the arrays of a loading process mapped.

    :raises OSError: it has ended
    """
    return {key: _mapped(entry, pid) if isinstance(entry, SharedArray) else entry for key, entry in feed.items()}


def _mapped(entry: SharedArray, pid: int) -> NDArray[Any]:
    dtype = np.dtype(entry.dtype)
    fd = os.open("/proc/%d/fd/%d" % (pid, entry.fd), os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = _memory(fd, int(np.prod(entry.shape)) * dtype.itemsize)
    finally:
        os.close(fd)
    return np.ndarray(entry.shape, dtype, buffer=memory)


def _memory(fd: int, size: int) -> SharedMemory:
    """Map a file, all pages at once: a fault for each of them would take longer."""
    return SharedMemory(fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
