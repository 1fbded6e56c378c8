"""The cache of compiled ops: one folder per fingerprint, shared by processes and, over a network, by machines.

Entries are atomic: a library is written under another name, flushed to disk and renamed, and its manifest with the
checksum comes last. Of processes that start at the same time, a lock lets one compile while the others wait; the kernel
releases it when the process dies.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Optional

from returnn_tf.native.errors import NativeOpError
from returnn_tf.util.file_lock import lock
from returnn_tf.util.trust import close_to_others, is_ours

ENVIRONMENT = "RETURNN_TF_NATIVE_CACHE"
#: Names of the folders in which ops are compiled.
BUILD_PREFIX = "build-"

_TESTED = ".tested"
#: The file in the folder of an op that the process locks that builds it.
LOCK = "lock"
#: The name of the object that joins ops to TensorFlow, which all of them share; no op has it.
SHARED_OBJECT = "_bridge"
#: The name of the folder of an op: the op and a fingerprint.
_ENTRY = re.compile(r"(\w+)-([0-9a-f]+)")


def cache_folders() -> list[str]:
    """Return the folders to search, in order of preference.

    ``$RETURNN_TF_NATIVE_CACHE`` alone; without it, the user's cache, and a folder of the user in the temporary one.
    """
    given = os.environ.get(ENVIRONMENT)
    if given:
        return [os.path.abspath(given)]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    own = os.path.join(tempfile.gettempdir(), "returnn_tf_native_%d" % os.getuid())
    return [os.path.join(home, "returnn_tf", "native"), own]


class CacheEntry:
    """A compiled op in a cache folder, or the object that all ops share."""

    def __init__(self, folder: str, name: str, fingerprint: str):
        self.name = name
        self.folder = os.path.join(folder, "%s-%s" % (name, fingerprint))
        self.library = os.path.join(self.folder, "rtf_%s.so" % name if name != SHARED_OBJECT else "bridge.o")
        self.manifest = os.path.join(self.folder, "manifest.json")

    def is_whole(self) -> bool:
        """Return whether the library exists, has the checksum with which it was written, and is nobody else's."""
        if not all(map(is_ours, (self.folder, self.manifest, self.library))):
            return False
        try:
            with open(self.manifest, encoding="utf8") as f:
                manifest = json.load(f)
            with open(self.library, "rb") as f:
                content = f.read()
        except (OSError, ValueError):
            return False
        return isinstance(manifest, dict) and manifest.get("sha256") == hashlib.sha256(content).hexdigest()

    def place(self) -> str:
        """Return the machines on which the library runs, as recorded by `put`; "" if unknown."""
        try:
            with open(self.manifest, encoding="utf8") as f:
                return str(json.load(f).get("place", ""))
        except (OSError, ValueError, AttributeError):
            return ""

    def put(self, built: str, **facts: str) -> None:
        """Move a library that was built on the same file system into the entry.

        :param built: path of the library, which is renamed
        :param facts: further entries of the manifest, for people
        """
        with open(built, "rb") as f:
            checksum = hashlib.sha256(f.read()).hexdigest()
            os.fsync(f.fileno())
        for old in (self.manifest, *self._notes()):
            with contextlib.suppress(FileNotFoundError):
                os.remove(old)
        close_to_others(built)
        os.replace(built, self.library)
        manifest = self.manifest + ".%d" % os.getpid()
        with open(manifest, "w", encoding="utf8") as f:
            json.dump({"sha256": checksum, **facts}, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        close_to_others(manifest)
        os.replace(manifest, self.manifest)

    @contextlib.contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Wait until no other process builds this op. A killed process leaves no lock.

        Yields whether the lock is held. Some network file systems have no locks: two processes may then build the same
        op, which only costs time.

        :param wait: False: if another process holds the lock, it is not taken
        :raises NativeOpError: there can be no file for the lock: it is another user's, or the disk is full
        """
        try:
            f = open(os.path.join(self.folder, LOCK), "w", encoding="utf8")
        except OSError as exc:
            raise unusable(exc, self.folder) from exc
        with f:
            try:
                lock(f, wait=wait)
                alone = True
            except OSError:
                alone = False
            yield alone

    def remove(self) -> int:
        """Remove the op, and what killed processes left. Requires the lock, whose file stays for those that wait.

        :return: bytes of what was removed
        """
        size = 0
        for path in (self.manifest, *self._notes(), self.library):
            with contextlib.suppress(FileNotFoundError):
                size += os.path.getsize(path)
                os.remove(path)
        self.remove_leftovers()
        return size

    def _notes(self) -> list[str]:
        """Return the files on how the library was tested and tried out, on the CPU and on the cards of machines."""
        return glob.glob(glob.escape(self.library) + ".*")

    def has_remains(self) -> bool:
        """Return whether there are parts of a library, of a process that was killed or a disk that was full."""
        return any(name != LOCK for name in os.listdir(self.folder))

    def remove_leftovers(self) -> None:
        """Remove files of processes that were killed while compiling. Requires the lock."""
        for name in os.listdir(self.folder):
            if name.startswith(BUILD_PREFIX):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)


def find_entry(name: str, fingerprint: str) -> Optional[CacheEntry]:
    """Return a complete entry, which need not be writable, or None."""
    entries = [CacheEntry(folder, name, fingerprint) for folder in cache_folders() if is_ours(folder)]
    return next((entry for entry in entries if entry.is_whole()), None)


def find_entry_of_any_compiler(name: str, place: str) -> Optional[CacheEntry]:
    """Return an op that any compiler built from the same sources for the same kind of machine, the newest if several.

    For machines without a compiler whose cache others have filled.
    """
    found = []
    for folder in filter(is_ours, cache_folders()):
        try:
            names = os.listdir(folder)
        except OSError:  # not readable by this user
            continue
        for inside in names:
            if inside.startswith(name + "-"):
                entry = CacheEntry(folder, name, inside[len(name) + 1 :])
                if entry.place() == place and entry.is_whole():
                    found.append(entry)
    return max(found, key=lambda entry: os.path.getmtime(entry.manifest), default=None)


def new_entry(name: str, fingerprint: str) -> CacheEntry:
    """Create an entry to build the op in, in the first writable folder.

    :raises NativeOpError: no folder is writable
    """
    failures = []
    for folder in cache_folders():
        entry = CacheEntry(folder, name, fingerprint)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            _check(folder)
            os.makedirs(entry.folder, exist_ok=True)
            if not is_ours(entry.folder) and os.lstat(entry.folder).st_uid == os.getuid():
                close_to_others(entry.folder)
                with contextlib.suppress(FileNotFoundError):
                    os.remove(entry.manifest)  # what others could have put there is built again
            _check(entry.folder)
            with tempfile.TemporaryFile(dir=entry.folder):
                return entry
        except OSError as exc:
            failures.append("%s: %s" % (folder, exc.strerror or exc))
    raise NativeOpError(
        "no folder for compiled ops can be written to (%s); set %s to one that can" % ("; ".join(failures), ENVIRONMENT)
    )


def _check(folder: str) -> None:
    if not is_ours(folder):
        raise PermissionError("it belongs to another user, or others (its group, too) may write to it")


def unusable(error: OSError, folder: str) -> NativeOpError:
    """Return the error to raise if something can't be written into an entry.

    :param folder: of the entry
    """
    fix = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "delete it, or mend its permissions"
    text = "%s: %s. This is in the cache of compiled ops, %s: %s, or set %s to another folder"
    where = str(error.filename or folder)
    return NativeOpError(text % (where, error.strerror or error, os.path.dirname(folder), fix, ENVIRONMENT))


def clean(folder: str) -> tuple[int, int]:
    """Remove all ops from a cache folder but those that a process compiles at the moment.

    Programs that have loaded an op keep it.

    :return: number of ops removed, and bytes
    :raises NativeOpError: there can be no file for the lock of an op
    :raises OSError: a file can't be removed
    """
    count = size = 0
    for inside in sorted(os.listdir(folder)) if is_ours(folder) else []:
        found = _ENTRY.fullmatch(inside)
        entry = CacheEntry(folder, found[1], found[2]) if found else None
        if entry is None or not is_ours(entry.folder) or not os.path.exists(os.path.join(entry.folder, LOCK)):
            continue
        with entry.lock(wait=False) as alone:
            removed = entry.remove() if alone else 0
        count, size = count + (removed > 0 and entry.name != SHARED_OBJECT), size + removed
    return count, size


def was_tested(library: str, card: str = "") -> bool:
    """Return whether the library is recorded to have passed its self-test.

    :param card: the GPUs on which it has to have passed, see `returnn_tf.native.gpu.card.card_in_use`
    """
    return os.path.exists(note_for(library, _TESTED, card))


def note_tested(library: str, card: str = "") -> None:
    """Record that the library has passed its self-test. If that fails, each process repeats the cheap test."""
    with contextlib.suppress(OSError), open(note_for(library, _TESTED, card), "w", encoding="utf8") as f:
        f.write(card)


def note_for(library: str, suffix: str, card: str = "") -> str:
    """Return the path of a file beside a library that holds something about it.

    :param suffix: what it holds, ".tested"
    :param card: the GPUs for which it holds; "" for the CPU
    """
    return library + suffix + ("-" + hashlib.sha256(card.encode()).hexdigest()[:16] if card else "")
