"""The parent's side of a process: messages, its errors, and its end."""

from __future__ import annotations

import subprocess
import weakref
from typing import Any

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.processes.process import start_process
from returnn_tf.datasets.processes.worker import Service
from returnn_tf.logging.log import log

ERRORS = {"ConfigError": ConfigError, "DataError": DataError}
CLOSE_SECONDS = 2.0


class WorkerProcess:
    """A process with a service. It ends with ``close``, or within seconds of this process, however that ends.

    :param what: what it is, for messages, e.g. "process 1 of dataset 'train'"
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
        """Send a message; if the process is gone, nothing happens, since `receive` tells."""
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
                raise DataError(death_notice(self._process, self.what)) from None
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
    """Return how a process ended, for a message."""
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
