"""A process that works for a dataset: answers requests until its parent is gone. TensorFlow is not imported.

What it does is up to its service, an object with a method ``serve(connection)``. Messages to it are (kind,) or (kind,
request, ...); errors are answered as ("error", request, class name, text, topic), and log records go to the parent as
("log", level, text).
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable, Protocol

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.user_code import error_in_config
from returnn_tf.logging.log import log

PARENT_CHECK_SECONDS = 1.0
PARENTS_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
]


class Service(Protocol):
    """The work of a process."""

    def serve(self, connection: Connection) -> None:
        """Answer the messages of the parent; return, or raise EOFError or ConnectionError, when it is gone."""


def main(fd: int, parent_pid: int) -> None:
    """Run a fresh process: read the service from the connection, then serve.

    :param fd: number of the open socket to the parent
    :param parent_pid: process id of the parent
    """
    connection = Connection(fd)
    content = connection.recv_bytes()
    serve(connection, lambda: pickle.loads(content), parent_pid)


def main_forked(connection: Connection, service: Service, parent_pid: int) -> None:
    """Run after a fork. Objects inherited from the parent are left alone, even by the garbage collector."""
    gc.freeze()
    serve(connection, lambda: service, parent_pid)


def serve(connection: Connection, make: Callable[[], Service], parent_pid: int) -> None:
    """Serve until the parent closes the connection or exits."""
    _set_signals()
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    connection = _ToParent(connection)
    log.send_to(lambda level, text: connection.send(("log", level, text)))
    with contextlib.suppress(BrokenPipeError, ConnectionError, EOFError):  # the parent is gone or has closed it
        try:
            service = make()
        except Exception as exc:
            service = _Broken(exc)
        service.serve(connection)


def answer(connection: Connection, receive: Callable[[], tuple[Any, ...]], run: Callable[..., None]) -> None:
    """Answer the messages ("epoch", request, ...) until the parent closes the connection; drop others, which came late.

    :param receive: returns the next message
    :param run: function of the rest of a message; what it raises is sent to the parent
    """
    while True:
        kind, *content = receive()
        if kind == "epoch":
            try:
                run(*content)
            except (ConnectionError, EOFError):
                raise
            except Exception as exc:
                connection.send(("error", content[0], *describe_error(exc)))


class _ToParent(Connection):
    """The connection to the parent, on which several threads may send: those that copy files write to the log."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(os.dup(connection.fileno()))
        connection.close()
        self._sending = threading.RLock()

    def send(self, obj: Any) -> None:
        """Send a message, after that of another thread is complete."""
        with self._sending:
            super().send(obj)


class _Broken:
    """Answers every request with the error that came up when the service was made."""

    def __init__(self, error: Exception):
        self._error = describe_error(error)

    def serve(self, connection: Connection) -> None:
        """Answer until the parent is gone."""
        while True:
            message = connection.recv()
            if len(message) > 1:
                connection.send(("error", message[1], *self._error))


def describe_error(exc: Exception) -> tuple[str, str, str]:
    """Describe an exception: `ConfigError` or `DataError`, whichever it is, its text and its topic.

    User errors are unchanged, errors in the code of a config have its line, all others a traceback.
    """
    if isinstance(exc, (ConfigError, DataError)):
        return "ConfigError" if isinstance(exc, ConfigError) else "DataError", str(exc), exc.topic
    place = error_in_config(exc)
    if place is not None:
        return "DataError", place, "code-in-configs"
    return "DataError", "%s: %s\n%s" % (type(exc).__name__, exc, traceback.format_exc()), ""


def _set_signals() -> None:
    """Ignore signals addressed to the whole job; this process exits with its parent."""
    signal.set_wakeup_fd(-1)  # after a fork it would still wake the parent
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)
