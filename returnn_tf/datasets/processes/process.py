"""The parent's side of a process: its start, messages, errors and end.

A process is fresh if its service can be sent to it, forked otherwise. A fresh interpreter is the safe way: it inherits
no locks, threads, signal handlers or GPU state of the parent, and the user's main script is not executed again. It
requires the service to be pickled. If that is impossible, e.g. because of a lambda in the options, the process is
forked: the child then only runs numpy and h5py code, exits without the parent's clean-up, and never frees what it
inherited. Without fork (Windows), such a service is an error.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Optional

from returnn_tf.config.errors import ConfigError, DataError, DatasetDataError, DatasetError
from returnn_tf.datasets.processes.worker import PARENTS_SIGNALS, Service, main_forked
from returnn_tf.logging.log import log
from returnn_tf.util.python_child import python_command

_CODE = "from returnn_tf.datasets.processes.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"


class ForkedProcess:
    """A forked child with the methods of ``subprocess.Popen`` needed here."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: Optional[int] = None

    def poll(self) -> Optional[int]:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the exit; ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("loader", timeout)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Kill it immediately."""
        if self.poll() is None:
            os.kill(self.pid, 9)


def start_process(service: Service) -> tuple[Any, Connection]:
    """Start a process.

    :param service: its work
    :return: the process (poll, wait, kill, pid) and the connection to it
    :raises ConfigError: the service cannot be pickled and there is no fork
    """
    content, reason = pickled(service)
    if content is not None and os.name == "posix":
        return _start_fresh(content)
    if not hasattr(os, "fork"):
        raise DatasetError(
            "the dataset cannot be sent to another process (%s), and this system has no fork; make it from a config "
            "file, or define its functions in an importable module" % (reason or "no sockets")
        )
    return _start_forked(service)


def _start_fresh(content: bytes) -> tuple[Any, Connection]:
    ours, theirs = Pipe()
    fd = theirs.fileno()
    command = python_command(_CODE, str(fd), str(os.getpid()))
    # if a config imports TensorFlow, it must not allocate GPU memory here
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    with _without_stop_signals():
        process = subprocess.Popen(command, pass_fds=[fd], env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    ours.send_bytes(content)
    return process, ours


@contextlib.contextmanager
def _without_stop_signals() -> Iterator[None]:
    """Block stop signals for processes started within: they are meant for the parent, which terminates its children."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_forked(service: Service) -> tuple[Any, Connection]:
    ours, theirs = Pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; see the module docstring
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            main_forked(theirs, service, parent)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    theirs.close()
    return ForkedProcess(pid), ours


def pickled(service: Any) -> tuple[Optional[bytes], str]:
    """Return the service as bytes for a fresh interpreter, or None and the reason why that is impossible."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=4).dump(service)
    except Exception as exc:  # pickling fails with nearly any exception
        return None, str(exc)
    return buffer.getvalue(), ""


class _Pickler(pickle.Pickler):
    """Rejects functions and classes that another interpreter could not import, e.g. those of the main script."""

    def reducer_override(self, obj: Any) -> Any:
        """Check the origin of a function or class; pickling itself is unchanged."""
        module = getattr(obj, "__module__", None)
        if isinstance(obj, type) or callable(obj):
            loaded = sys.modules.get(module) if isinstance(module, str) else None
            if isinstance(module, str) and (module == "__main__" or getattr(loaded, "__spec__", None) is None):
                raise pickle.PicklingError("%r is defined in %s, which cannot be imported elsewhere" % (obj, module))
        return NotImplemented


ERRORS = {"ConfigError": ConfigError, "DataError": DataError}
CLOSE_SECONDS = 2.0


class WorkerProcess:
    """A process with a service. It ends with ``close``, or within seconds of this process, however that ends.

    :param what: its name in messages, e.g. "process 1 of dataset 'train'"
    :raises ConfigError: the service can't be sent to a process
    """

    def __init__(self, service: Service, what: str):
        self.what = what
        self._process, self._connection = start_process(service)
        self._finalizer = weakref.finalize(self, end_process, self._process, self._connection)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return int(self._process.pid)

    def send(self, *message: Any) -> None:
        """Send a message; ignore a process that is gone, which `receive` reports."""
        try:
            self._connection.send(message)
        except OSError:
            pass

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message.

        :raises DataError: the process has ended, or it reported this error
        """
        while True:
            try:
                message: tuple[Any, ...] = self._connection.recv()
            except (EOFError, OSError):
                raise DatasetDataError(death_notice(self._process, self.what)) from None
            if message[0] == "log":
                log.pass_on(message[1], message[2])
            elif message[0] == "error":
                raise ERRORS[message[2]](message[3], topic=message[4])
            else:
                return message

    def close(self) -> None:
        """End the process. May be called again."""
        self._finalizer()


def death_notice(process: Any, what: str) -> str:
    """Return a message on the end of a process."""
    try:
        code = process.wait(timeout=CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    reason = "exit code %s" % code
    if code is not None and code < 0:
        reason = "signal %d" % -code + (", perhaps for lack of memory" if code == -9 else "")
    return "%s ended unexpectedly: %s" % (what, reason)


def end_process(process: Any, connection: Any) -> None:
    """Kill a process if it still runs, and wait for it."""
    if process.poll() is None:
        process.kill()
    try:
        process.wait(timeout=CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        log.warn("process %d does not end" % process.pid)
    connection.close()
