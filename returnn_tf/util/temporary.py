"""Temporary files and folders beside their target, leftovers of killed processes, and locks on files that change.

A name holds machine and process, so that no two processes ever write under the same one. While its process lives, a
temporary file is locked (``flock``), which processes of other machines and containers see, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.util.file_lock import HAS_LOCKS, has_name, lock

_NAME = re.compile(r"\.tmp-([0-9a-f]{8})-(\d+)-[0-9a-f]+$")
_PAUSE = 0.02
_ATTEMPTS = 5
_CLEANING = 1.0  # seconds; much more than another process needs to remove what it has locked

#: Advice for a disk without space for a file.
NO_SPACE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space of your quota",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
}
_live: set[Temporary] = set()


class Temporary:
    """A new file or folder beside a target, renamed to it when complete. Use it as a context manager.

    :param target: path of the complete file or folder, whose parent must exist
    :param owner: prefix of the name, e.g. the model whose runs remove the leftovers of killed ones
    :param folder: whether it is a folder
    :param clean: whether to remove those of the same target whose process is dead
    :raises OSError: it can't be made
    """

    def __init__(self, target: str, *, owner: str = "", folder: bool = False, clean: bool = True) -> None:
        self.target = os.path.abspath(target)
        self._is_folder = folder
        if clean:
            remove_leftovers(self.target, owner=owner)
        for attempts_left in reversed(range(_ATTEMPTS)):
            self.path = _path(self.target, owner)
            self._handle = self._create()
            _flock(self._handle, wait_until=time.monotonic() + _CLEANING)
            # else a process elsewhere removed it before it was locked, or this file system does not report it
            if has_name(self.path, self._handle) or not attempts_left:
                break
            self._close()
        _live.add(self)

    def _create(self) -> Optional[int]:
        if not self._is_folder:
            return os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
        os.mkdir(self.path)
        return os.open(self.path, os.O_RDONLY) if HAS_LOCKS else None

    def write(self, content: bytes, *, sync: bool = True) -> None:
        """Write the content.

        :param sync: wait until it is on the disk
        :raises OSError: e.g. it is full
        """
        with open(self.path, "rb+") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def publish(self, target: Optional[str] = None) -> None:
        """Rename it to the target, which is replaced if it exists; nothing remains to be removed.

        :raises OSError: the rename fails
        """
        os.replace(self.path, target or self.target)
        self._close()

    def remove(self) -> None:
        """Remove it, unless it is published."""
        if self._is_folder:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.remove(self.path)
        self._close()

    def _close(self) -> None:
        _live.discard(self)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Temporary:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.remove()


def remove_all() -> None:
    """Remove all temporary files and folders of this process, which is about to end without finishing them.

    Also the files of code that TensorFlow has generated, which it removes in an orderly end only.
    """
    for temporary in list(_live):
        temporary.remove()
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file"):
            with contextlib.suppress(OSError, TypeError):
                os.remove(getattr(module, "__file__", None) or "")


def remove_leftovers(target: str, *, owner: str = "") -> list[str]:
    """Remove the temporary files and folders of a target whose processes are dead; return their paths."""
    folder, name = os.path.split(os.path.abspath(target))
    start, removed = _start(name, owner), []
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    for entry in entries:
        path = os.path.join(folder, entry)
        if entry.startswith(start) and _NAME.fullmatch(entry, len(start) - len(".tmp-")):
            with _is_left(path) as is_left, contextlib.suppress(OSError):
                if is_left:
                    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
                    removed.append(path)
    return removed


@contextlib.contextmanager
def exclusive(path: str, patience: float) -> Iterator[bool]:
    """Lock a file while it is read, changed and replaced; processes that only read it need not wait.

    The lock is on the file itself. A missing one is made, empty, and removed if it is still empty at the end.

    :param patience: seconds to wait at most
    :return: yields whether the lock is held: not if the file system has none, or another process holds it for too long
    """
    end = time.monotonic() + patience
    while True:
        handle = _open_to_lock(path)
        held = _flock(handle, wait_until=end)
        if not held or has_name(path, handle):
            break
        os.close(handle)  # type: ignore[arg-type]  # it has been replaced
        if time.monotonic() > end:
            handle, held = None, False
            break
    try:
        yield held
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                if has_name(path, handle) and not os.fstat(handle).st_size:
                    os.remove(path)
            os.close(handle)


def _open_to_lock(path: str) -> Optional[int]:
    """Open a file to lock it; on network file systems it must be open for writing. None if that is impossible."""
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    return None


def _flock(handle: Optional[int], wait_until: float = 0.0) -> bool:
    """Lock an open file or folder; return whether that has worked."""
    while handle is not None:
        try:
            lock(handle)
            return True
        except BlockingIOError:
            if time.monotonic() >= wait_until:
                return False
        except OSError:
            return False
        time.sleep(_PAUSE)
    return False


@contextlib.contextmanager
def _is_left(path: str) -> Iterator[bool]:
    """Yield whether the process that made a temporary file is dead; while it is removed then, it stays locked."""
    machine, pid = _NAME.search(path).groups()  # type: ignore[union-attr]
    is_here = machine == _machine()
    if is_here and _is_alive(int(pid)):
        yield False
        return
    handle, is_left = None, is_here  # if there are no locks on this file system, or not for folders
    try:
        with contextlib.suppress(OSError):
            handle = os.open(path, (os.O_RDONLY if os.path.isdir(path) else os.O_RDWR) | getattr(os, "O_NONBLOCK", 0))
            try:
                lock(handle)
                is_left = True
            except BlockingIOError:
                is_left = False
        yield is_left
    finally:
        if handle is not None:
            os.close(handle)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _path(target: str, owner: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, "%s%s-%d-%s" % (_start(name, owner), _machine(), os.getpid(), os.urandom(3).hex()))


def _start(name: str, owner: str) -> str:
    full = (owner and "%s.%s" % (owner, name)) or name
    return "%s%s.tmp-" % ("" if full.startswith(".") else ".", full)


def _machine() -> str:
    return "%08x" % zlib.crc32(socket.gethostname().encode("utf8", "surrogateescape"))
