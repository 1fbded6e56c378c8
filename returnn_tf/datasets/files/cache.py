"""A folder with copies of files, shared by all processes of a machine.

A copy has the absolute path of its original below the folder, and its size and time of modification; it is used while
these agree. It is written under another name and renamed when it is whole. A lock lets one process copy while others
wait; the kernel releases it when the process dies, and the next one starts over. The lock file also keeps the time of
the last use, which running processes renew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Optional, Protocol

from returnn_tf.config.options import above, at_least, file_name, option, probability
from returnn_tf.logging.log import log
from returnn_tf.util.file_lock import HAS_LOCKS, has_name, lock
from returnn_tf.util.trust import is_ours

_EVERY_SECONDS = 1800.0  # far below the shortest age at which a copy is removed

_used: dict[str, None] = {}
_threads: dict[int, threading.Thread] = {}  # by process: a forked one has none


def note_use(path: str) -> None:
    """Set the time of a file to now, and renew it periodically until the process ends."""
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


LOCK = ".cache-lock"
PART = ".cache-part"
DAY = 24 * 3600.0
#: Bytes that stay free on the disk.
RESERVE = 1 << 30

_BLOCK = 1 << 24
_WAIT_SECONDS = 0.2
_LOG_SECONDS = 60.0
_STALLED_SECONDS = 600.0  # a process that copies, but writes nothing for this time, is not waited for
_TIME_UNIT = 1000  # nanoseconds; what file systems keep of a time of modification


class CopyError(Exception):
    """No copy can be made; the text is the reason."""


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """The setting ``file_cache_opts``."""

    cache_directory: str = option(
        "",
        help="folder of the copies; default: $RETURNN_TF_FILE_CACHE, or one of the user below $TMPDIR",
        check=file_name,
    )
    cleanup_files_always_older_than_days: float = option(
        31.0, help="copies that are unused for so many days are removed", check=above(0)
    )
    cleanup_files_wanted_older_than_days: float = option(
        1.0, help="the same while the disk has too little free space", check=at_least(0)
    )
    cleanup_disk_usage_wanted_free_ratio: float = option(
        0.0, help="share of the disk that is to be free after a copy; 0: 1 GB", check=probability
    )
    num_tries: int = option(3, help="how often a copy is begun of a file that changes meanwhile", check=at_least(1))


#: Size of a file, and its time of modification in microseconds.
Facts = tuple[int, int]


class Source(Protocol):
    """A file to copy."""

    @property
    def name_of_copy(self) -> str:
        """Return the path of its copy below the folder of copies."""

    def facts(self) -> Facts:
        """Return what changes with its content; FileNotFoundError or DataError if there is no such file."""

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield its content, at most so many bytes at once."""


class LocalFile:
    """A file in the file system.

    :param path: absolute
    """

    def __init__(self, path: str):
        self.path = path

    @property
    def name_of_copy(self) -> str:
        """Return the path of its copy below the folder of copies: its own."""
        return self.path.lstrip(os.sep)

    def facts(self) -> Facts:
        """Return size and time of modification."""
        status = os.stat(self.path)
        if not stat.S_ISREG(status.st_mode):
            raise CopyError("it is not a regular file")
        return _facts(status)

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield the content, at most so many bytes at once."""
        with open(self.path, "rb", buffering=0) as file:
            yield from iter(lambda: file.read(size), b"")


class FileCache:
    """The copies in a folder.

    :param folder: on the local disk; created on demand
    :param private: the folder must belong to the user, since others can write beside it
    """

    def __init__(self, folder: str, options: Optional[CacheOptions] = None, *, private: bool = False):
        self.folder = folder
        self.options = CacheOptions() if options is None else options
        self.private = private

    def get(self, path: str) -> str:
        """Return the path of an up-to-date copy; that of the original if a copy is impossible, which is logged."""
        source = os.path.abspath(path)
        if source.startswith(os.path.join(self.folder, "")):
            return source
        try:
            return self.copy(LocalFile(source), source)
        except (CopyError, OSError) as exc:
            reason = str(exc) if isinstance(exc, CopyError) else exc.strerror or str(exc)
            log.warn("no local copy of %r in %r: %s; the file is read where it is" % (path, self.folder, reason))
            return path

    def copy(self, source: Source, name: str) -> str:
        """Return the path of an up-to-date copy.

        :param name: of the original, for the log
        :raises CopyError: a copy is impossible
        :raises OSError: likewise
        :raises DataError: the original is a remote file that cannot be read
        """
        source.facts()  # an error if it is not there
        copy = os.path.join(self.folder, source.name_of_copy)
        for _ in range(self.options.num_tries):
            if _is_same(source, copy):
                note_use(copy + LOCK)
                if _is_same(source, copy):  # else it has just been removed
                    return copy
            self._prepare(copy)
            with _locked(copy):
                if not _is_same(source, copy):  # else another process has made it
                    self._copy(source, copy, name)
        raise CopyError("it changes all the time")

    def made(self, name: str, write: Callable[[str], None]) -> str:
        """Return the path of a file that is no copy, but made; it is kept like a copy.

        :param name: in the folder; other content has another name
        :param write: writes it to a path, if it is not there yet; other processes wait
        :raises CopyError, OSError: it can't be made
        """
        path = os.path.join(self.folder, name)
        self._prepare(path)
        with _locked(path):
            if not os.path.exists(path):
                try:
                    write(path + PART)
                    os.replace(path + PART, path)
                finally:
                    with contextlib.suppress(OSError):
                        os.remove(path + PART)
            note_use(path + LOCK)
        return path

    def _prepare(self, copy: str) -> None:
        if not HAS_LOCKS:
            raise CopyError("this system has no file locks")
        os.makedirs(self.folder, mode=0o700 if self.private else 0o777, exist_ok=True)
        if self.private and not is_ours(self.folder):
            raise CopyError("the folder belongs to another user, or others may write to it")
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        self._remove_old()

    def _copy(self, source: Source, copy: str, name: str) -> None:
        """Copy a file and verify size and time. Requires the lock."""
        before = size, modified = source.facts()
        self.make_space(size)
        log.write(3, "copying %r (%.1f MB) to %r" % (name, size / 1e6, self.folder))
        start = time.monotonic()
        part = copy + PART
        try:
            if _write(source, part) != size or source.facts() != before:
                raise CopyError("it changed while it was copied")
            os.utime(part, ns=(modified * _TIME_UNIT, modified * _TIME_UNIT))
            os.replace(part, copy)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(part)
            raise
        if not _is_same(source, copy):
            raise CopyError("the copy has another size or time of modification than the original")
        log.write(3, "copied %r in %.1f s" % (name, time.monotonic() - start))

    def make_space(self, size: int) -> None:
        """Remove copies that are unused where the disk has not enough space for another file.

        :param size: bytes of that file
        :raises CopyError: that is not enough
        """
        wanted = size + max(RESERVE, int(self.options.cleanup_disk_usage_wanted_free_ratio * self._size()))
        if self._free() < wanted:
            self.remove_unused(self.options.cleanup_files_wanted_older_than_days, needed=wanted)
        if self._free() < size + RESERVE:
            raise CopyError(
                "it needs %.1f MB and %.1f MB are to stay free, but the disk has %.1f MB"
                % (size / 1e6, RESERVE / 1e6, self._free() / 1e6)
            )

    def _free(self) -> int:
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def _size(self) -> int:
        status = os.statvfs(self.folder)
        return status.f_blocks * status.f_frsize

    def _remove_old(self) -> None:
        """Remove copies that are unused for long, once a day by the first process."""
        marker = os.path.join(self.folder, ".cleaned")
        with contextlib.suppress(OSError):
            if time.time() - os.path.getmtime(marker) < DAY:
                return
        with open(marker, "w"):
            pass
        os.utime(marker)
        self.remove_unused(self.options.cleanup_files_always_older_than_days)

    def remove_unused(self, days: float, *, needed: Optional[int] = None) -> list[str]:
        """Remove copies that were not used for some days, the longest unused first; return their paths.

        :param needed: stop when this number of bytes is free
        """
        removed = []
        for last_use, copy in sorted(self._copies()):
            if time.time() - last_use < days * DAY or (needed is not None and self._free() >= needed):
                break
            with contextlib.suppress(OSError):
                if _remove(copy, days):
                    removed.append(copy)
        if removed:
            log.write(3, "removed %d copies from %r that were not used for %g days" % (len(removed), self.folder, days))
        return removed

    def _copies(self) -> Iterator[tuple[float, str]]:
        """Yield (time of the last use, path of the copy)."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                if name.endswith(LOCK):
                    path = os.path.join(folder, name)
                    with contextlib.suppress(OSError):
                        yield os.path.getmtime(path), path[: -len(LOCK)]


def _facts(status: os.stat_result) -> Facts:
    return status.st_size, status.st_mtime_ns // _TIME_UNIT


def _is_same(source: Source, copy: str) -> bool:
    """Return whether a copy has size and time of the original."""
    facts = source.facts()
    try:
        return facts == _facts(os.stat(copy))
    except FileNotFoundError:
        return False


def _write(source: Source, part: str) -> int:
    """Copy the content to the disk; return the number of bytes."""
    with open(part, "wb", buffering=0) as target:
        size = 0
        for block in source.blocks(_BLOCK):
            rest = memoryview(block)
            while rest:
                rest = rest[target.write(rest) :]
            size += len(block)
        os.fsync(target.fileno())
    return size


def _remove(copy: str, days: float) -> bool:
    """Remove a copy unless it has been used since, or a process that makes it holds the lock."""
    with open(copy + LOCK, "rb") as file:
        lock(file)
        if time.time() - os.fstat(file.fileno()).st_mtime < days * DAY:
            return False
        for path in (copy, copy + PART):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        os.remove(copy + LOCK)  # last: who waits for the lock sees that it is gone, and makes a new one
    return True


@contextlib.contextmanager
def _locked(copy: str) -> Iterator[None]:
    """Wait until no other process copies this file. The lock of a dead process is free.

    :raises CopyError: the process that holds it writes nothing for a long time
    """
    path = copy + LOCK
    waited = _Patience(copy + PART)
    while True:
        with open(path, "ab") as file:
            try:
                lock(file)
            except BlockingIOError:
                waited.wait()
                continue
            if has_name(path, file.fileno()):  # else it was removed together with an old copy
                yield
                return


class _Patience:
    """Waits for another process that copies.

    :param part: the file that this process writes
    """

    def __init__(self, part: str):
        self.part = part
        self._size = -1
        self._changed = self._logged = time.monotonic()

    def wait(self) -> None:
        """Wait for a moment; CopyError if there is no progress for a long time."""
        now = time.monotonic()
        try:
            size = os.path.getsize(self.part)
        except OSError:
            size = -1
        if size != self._size:
            self._size, self._changed = size, now
        if now - self._changed > _STALLED_SECONDS:
            raise CopyError("another process copies it, but has written nothing for %g s" % _STALLED_SECONDS)
        if now - self._logged > _LOG_SECONDS:
            self._logged = now
            log.write(3, "waiting for another process that copies a file: %.1f MB are done" % (max(size, 0) / 1e6,))
        time.sleep(_WAIT_SECONDS)
