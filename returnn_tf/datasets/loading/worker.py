"""The loading process: creates the dataset, then sends the batches of each requested epoch.

Messages to it: ("epoch", request, arguments of ``Dataset.batches``), ("stop",). Messages from it: ("batch", request,
Batch), ("end", request, BatchStats), ("error", request, class name, text), ("log", level, text). TensorFlow is not
imported, unless a config file that makes the dataset does so.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable

from returnn_tf.config import ConfigError, DataError

PARENT_CHECK_SECONDS = 1.0
PARENTS_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
]


def main(fd: int, parent_pid: int) -> None:
    """Run a fresh process: read the factory of the dataset from the connection, then serve.

    :param fd: number of the open socket to the parent
    :param parent_pid: process id of the parent
    """
    connection = Connection(fd)
    content = connection.recv_bytes()
    serve(connection, lambda: pickle.loads(content)(), parent_pid)


def main_forked(connection: Connection, factory: Callable[[], Any], parent_pid: int) -> None:
    """Run after a fork. Objects inherited from the parent are left alone, even by the garbage collector."""
    gc.freeze()
    serve(connection, factory, parent_pid)


def serve(connection: Connection, factory: Callable[[], Any], parent_pid: int) -> None:
    """Answer requests until the parent closes the connection or exits."""
    _set_signals()
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    _forward_log(connection)
    try:
        dataset = None
        while True:
            message = connection.recv()
            if message[0] != "epoch":
                continue  # a stop that came after the end
            _, request, arguments = message
            try:
                if dataset is None:
                    dataset = factory()
                _send_epoch(connection, dataset, request, arguments)
            except (BrokenPipeError, ConnectionError, EOFError):
                raise
            except Exception as exc:
                connection.send(("error", request) + _describe(exc))
    except (BrokenPipeError, ConnectionError, EOFError):
        pass  # the parent is gone or has closed the loader


def _send_epoch(connection: Connection, dataset: Any, request: int, arguments: dict[str, Any]) -> None:
    with contextlib.closing(dataset.batches(**arguments)) as batches:
        for batch in batches:
            if connection.poll() and connection.recv()[0] == "stop":
                break
            connection.send(("batch", request, batch))
    connection.send(("end", request, dataset.batch_stats))


def _describe(exc: Exception) -> Any:
    """Return class name and text of an exception; user errors unchanged, all others with a traceback."""
    if isinstance(exc, (ConfigError, DataError)):
        return type(exc).__name__, str(exc)
    return "DataError", "%s: %s\n%s" % (type(exc).__name__, exc, traceback.format_exc())


def _set_signals() -> None:
    """Ignore signals addressed to the whole job; this process exits with its parent."""
    signal.set_wakeup_fd(-1)  # after a fork it would still wake the parent
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


class _ToParent(logging.Handler):
    """Sends log records to the parent."""

    def __init__(self, connection: Connection):
        super().__init__()
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record as ("log", level, text)."""
        self.connection.send(("log", record.levelno, record.getMessage()))


def _forward_log(connection: Connection) -> None:
    logger = logging.getLogger("returnn_tf")
    logger.handlers = [_ToParent(connection)]
    logger.propagate = False
    logger.setLevel(logging.INFO)
