"""The temporary file of an ``HDFWriter``: its name, leftovers of killed processes, and closing on a full disk."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
from collections.abc import Iterator

import h5py

from returnn_tf.config import DataError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("returnn_tf.datasets")


def temporary_name(filename: str) -> str:
    """Return the temporary name under which this process writes a file."""
    return "%s.%d.tmp" % (filename, os.getpid())


def remove_stale(filename: str) -> None:
    """Remove the temporary files of a target that no process writes any more."""
    for path in glob.glob(glob.escape(filename) + ".*.tmp"):
        found = re.match(r"\.(\d+)\.tmp$", path[len(filename) :])
        if found and not _alive(int(found.group(1))) and not _locked(path):
            with contextlib.suppress(OSError):
                os.unlink(path)
                log.info("removed %r, which a killed process left", path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _locked(path: str) -> bool:
    """Return whether a process, perhaps on another host, has the file open: the HDF5 library locks what it writes."""
    if fcntl is None:
        return True
    try:
        with open(path, "rb+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


@contextlib.contextmanager
def reporting(filename: str) -> Iterator[None]:
    """Turn write errors of the HDF5 library within the context into a `DataError` with the reason."""
    try:
        yield
    except (OSError, RuntimeError) as exc:
        found = re.search(r"errno = (\d+)", str(exc))
        number = int(found.group(1)) if found else getattr(exc, "errno", None)
        reason = os.strerror(number) if number else str(exc).split("\n", 1)[0]
        raise DataError(
            "HDF file %r can't be written: %s. Free space, or choose another path" % (filename, reason)
        ) from exc


def discard(file: h5py.File, path: str, *, broken: bool) -> None:
    """Close and remove a file that is not to be completed.

    :param broken: writing it has failed. On closing, the library writes its buffers; if that fails, it crashes at the
        end of the process; so the buffers go to memory
    """
    if broken:
        with contextlib.suppress(OSError, RuntimeError):
            _redirect_to_memory(file)
    with contextlib.suppress(OSError, RuntimeError):
        file.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _redirect_to_memory(file: h5py.File) -> None:
    """Redirect further writes of the library to a sparse file in memory: a few MB at most."""
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("discarded")
        os.ftruncate(memory, file.id.get_filesize())
        os.dup2(memory, file.id.get_vfd_handle())
        os.close(memory)
