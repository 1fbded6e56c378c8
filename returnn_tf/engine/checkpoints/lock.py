"""A lock file beside the checkpoints, with host and process, so that no two runs write the same checkpoints.

On the same host a lock is valid while its process lives. Across hosts, the holder touches the file every few seconds,
and a process that requests the lock watches whether that continues. No clocks are compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from typing import Any, Callable, Optional

from returnn_tf.config.errors import CheckpointError
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.engine.checkpoints import model_dir
from returnn_tf.logging.log import log

BEAT_SECONDS = 5.0
_MAX_BYTES = 1 << 16
PATIENCE_SECONDS = 6 * BEAT_SECONDS  # without a beat for this long, the holder counts as dead


class ModelLock:
    """Lock on the path prefix of the checkpoints of a training run.

    :param model: path prefix
    :param wanted: False if another process of the same run holds it
    """

    def __init__(self, model: str, *, wanted: bool = True) -> None:
        self._wanted = wanted and bool(model)
        self.model = model
        self.path = path_of(model)
        self._mine = {**_machine(), "pid": os.getpid(), "born": _start_time(os.getpid())}
        self._token = uuid.uuid4().hex
        self._held = False
        self._released = threading.Event()
        self._changing = threading.Lock()  # the file: a beat on a slow disk must not create it again after the release

    def acquire(self, *, make_folder: bool = False) -> None:
        """Take the lock, unless it is already held or the folder does not exist yet.

        :param make_folder: create the folder if it is missing
        :raises ConfigError: another process has it, or the folder can't be written
        """
        folder = os.path.dirname(self.path)
        if not self._wanted or self._held or not (make_folder or os.path.isdir(folder)):
            return
        try:
            os.makedirs(folder, exist_ok=True)
            while not self._create():
                other = _content(self.path)
                if other is not None and self._is_alive(other):
                    raise CheckpointError(self._held_text(other))
                self._take_over(other)
        except OSError as exc:
            raise model_dir.not_writable(self.model, exc) from exc
        self._held = True
        threading.Thread(target=self._beat, name="lock", daemon=True).start()

    def check(self) -> None:
        """Check that this process still holds the lock.

        :raises ConfigError: another process has taken the lock, because this one was silent for too long
        """
        if self._held and self._released.is_set():
            self._held = False
            raise CheckpointError(self._held_text(_content(self.path) or {}))

    def release(self) -> None:
        """Release the lock."""
        self._released.set()
        with self._changing:
            if self._held and (_content(self.path) or {}).get("token") == self._token:
                with contextlib.suppress(OSError):
                    os.remove(self.path)
            self._held = False

    def _create(self) -> bool:
        """Create the file atomically; return False if it exists already."""
        temp = "%s.tmp-%s" % (self.path, self._token)
        content = {**self._mine, "since": time.strftime("%Y-%m-%d %H:%M:%S"), "token": self._token}
        try:
            with open(temp, "w", encoding="utf8") as file:
                json.dump(content, file)
            os.link(temp, self.path)
            return True
        except (FileExistsError, FileNotFoundError):  # the latter: a new holder has cleaned up
            return False
        finally:
            with contextlib.suppress(OSError):
                os.remove(temp)

    def _is_alive(self, other: dict[str, Any]) -> bool:
        if _is_here(other):
            return _alive_here(other)
        log.write(2, "%s is locked from host %s; watching whether that run lives" % (self.model, other.get("host")))
        return _changes(lambda: _mtime_ns(self.path), BEAT_SECONDS / 10) and _mtime_ns(self.path) is not None

    def _take_over(self, other: Optional[dict[str, Any]]) -> None:
        """Remove a stale lock. If several processes try, only one does, and none removes a newer lock."""
        guard = self.path + ".guard"
        try:
            os.mkdir(guard)
        except FileExistsError:
            if not _changes(lambda: _made_ns(guard), BEAT_SECONDS / 50):  # its owner has died
                with contextlib.suppress(OSError):
                    os.rmdir(guard)
            return
        try:
            if _content(self.path) == other:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self.path)
                if other is not None:
                    facts = (other.get("pid"), other.get("host"))
                    log.write(2, "Took over the lock of process %s on %s, which has ended" % facts)
        finally:
            with contextlib.suppress(FileNotFoundError):  # held for so long that another process removed it
                os.rmdir(guard)

    def _beat(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            with self._changing:
                if not self._released.is_set():
                    self._touch()

    def _touch(self) -> None:
        found = _content(self.path)
        if found is not None and found.get("token") != self._token:
            self._released.set()
            return
        with contextlib.suppress(OSError):
            if found is None:  # deleted by hand
                self._create()
            os.utime(self.path)

    def _held_text(self, other: dict[str, Any]) -> str:
        facts = (self.model, other.get("pid"), other.get("host"), other.get("since"), self.path)
        return (
            "model = %r is being trained by process %s on host %s since %s. Wait for its end, stop it, or "
            "choose another path to train another model. If you are sure that it does not run, delete %s." % facts
        )


def path_of(model: str) -> str:
    """Return the lock file for a path prefix of checkpoints."""
    folder, name = os.path.split(os.path.abspath(model))
    return os.path.join(folder, ".%s.lock" % name)


def holder_alive(model: str) -> Optional[bool]:
    """Return whether a process of this machine holds the lock on a model; None if the holder is on another machine."""
    other = _content(path_of(model))
    if other is None:
        return False
    return _alive_here(other) if _is_here(other) else None


def seconds_since_beat(model: str) -> float:
    """Return the seconds since the holder touched the lock, by the local clock; infinite if nobody holds it."""
    touched = _mtime_ns(path_of(model))
    return float("inf") if touched is None else time.time() - touched / 1e9


def _machine() -> dict[str, Any]:
    return {"host": socket.gethostname(), "boot": _boot_id()}


def _is_here(other: dict[str, Any]) -> bool:
    machine = _machine()
    return {key: other.get(key) for key in machine} == machine


def _alive_here(other: dict[str, Any]) -> bool:
    pid = other.get("pid")
    return isinstance(pid, int) and _start_time(pid) is not None and _start_time(pid) == other.get("born")


def _content(path: str) -> Optional[dict[str, Any]]:
    """Return the contents of the lock file; None if it is missing or not readable as JSON."""
    try:
        with open_regular(path) as file:
            found = json.loads(file.read(_MAX_BYTES).decode("utf8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _mtime_ns(path: str) -> Optional[int]:
    """Return the mtime in ns, by the clock of the file system.

    The file is opened, so that a network file system refreshes its attributes.
    """
    try:
        with open_regular(path) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _made_ns(folder: str) -> Optional[int]:
    """Return the time at which an empty folder was made, by the clock of the file system; None if absent."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


def _changes(look: Callable[[], Any], pause: float) -> bool:
    """Watch for a change of the value of ``look`` within `PATIENCE_SECONDS`; None means changed."""
    first, end = look(), time.monotonic() + PATIENCE_SECONDS
    while first is not None and time.monotonic() < end:
        time.sleep(pause)
        if look() != first:
            return True
    return first is None


def _boot_id() -> Optional[str]:
    """Return an id which differs between machines of the same name and between boots; None where it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf8") as file:
            return file.read().strip()
    except OSError:
        return None


def _start_time(pid: int) -> Optional[str]:
    """Return the start time of a process, as two processes may get the same id; None if it is dead."""
    try:
        with open("/proc/%i/stat" % pid, encoding="utf8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    except OSError:
        pass
    if os.path.exists("/proc/self/stat"):
        return None
    try:
        os.kill(pid, 0)  # without /proc; signal 0 only checks existence
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"
