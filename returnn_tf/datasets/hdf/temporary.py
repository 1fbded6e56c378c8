"""The file of an HDF writer until it is complete: under a temporary name, and safe against disks that are full."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any, Callable, Optional

import h5py

from returnn_tf.config.errors import DataError, FileDataError
from returnn_tf.util.temporary import NO_SPACE, Temporary


class Output:
    """A new HDF file. The HDF5 library writes through it, and never sees that a write fails.

    If the library can't write all that it holds, it crashes at the end of the process. So the first error is kept, and
    later writes are dropped.

    :param filename: the name of the complete file
    :param start: file with whose content it begins
    :raises OSError: it can't be made
    """

    def __init__(self, filename: str, start: Optional[str] = None) -> None:
        os.makedirs(os.path.dirname(os.path.abspath(filename)), exist_ok=True)
        self.filename = filename
        self.error: Optional[OSError] = None
        self._temporary = Temporary(filename)
        try:
            if start is not None:
                shutil.copyfile(start, self._temporary.path)
            self._raw = open(self._temporary.path, "rb+", buffering=0)
            try:
                self.file: Optional[h5py.File] = h5py.File(self, "w" if start is None else "a")
            except BaseException:
                self._raw.close()
                raise
        except BaseException:
            self._temporary.remove()
            raise

    def readinto(self, buffer: Any) -> int:
        """Read bytes at the position, without those that were dropped."""
        return self._raw.readinto(buffer) or 0

    def read(self, size: int = -1) -> bytes:
        """Read bytes at the position, without those that were dropped."""
        return self._raw.read(size) or b""

    def write(self, data: Any) -> int:
        """Write bytes at the position, or drop them."""
        self._attempt(lambda: self._write_all(memoryview(data).cast("B")))
        return len(data)

    def _write_all(self, rest: memoryview) -> None:
        while rest:
            rest = rest[self._raw.write(rest) :]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._raw.tell()

    def truncate(self, size: Optional[int] = None) -> None:
        """Set the size of the file."""
        self._attempt(lambda: self._raw.truncate(size))

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def _attempt(self, job: Callable[[], Any]) -> None:
        """Run a job that changes the file, unless one has failed before."""
        if self.error is None:
            try:
                job()
            except OSError as exc:
                self.error = exc

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Turn errors of writing within the context into a `DataError` with the reason."""
        try:
            yield
            if self.error is not None:
                raise self.error
        except (OSError, RuntimeError) as exc:
            raise not_written(self.filename, self.error or exc) from exc

    def complete(self) -> None:
        """Close the file and sync it to the disk.

        :raises DataError: it can't be written
        """
        assert self.file is not None
        with self.reporting():
            self.file.close()
        self.file = None
        with self.reporting():
            os.fsync(self._raw.fileno())
            self._raw.close()

    def publish(self) -> None:
        """Rename the complete file to its target.

        :raises DataError: the rename fails
        """
        with self.reporting():
            self._temporary.publish()

    def abort(self) -> None:
        """Remove what was written, unless it is published."""
        if self.file is not None:
            if self.error is None:
                self.error = OSError("aborted")  # no further writes are needed
            with contextlib.suppress(OSError, RuntimeError):
                self.file.close()
            self.file = None
        self._raw.close()
        self._temporary.remove()


def not_written(filename: str, exc: Exception) -> DataError:
    """Return the error for an HDF file that can't be written."""
    number = getattr(exc, "errno", None)
    reason = os.strerror(number) if number else str(exc).split("\n", 1)[0]
    fix = NO_SPACE[number] + ", or choose another path" if number in NO_SPACE else "Choose another path"
    return FileDataError("HDF file %r can't be written: %s. %s" % (filename, reason, fix))
