"""The service of a loading process: creates the dataset, then sends the batches of each requested epoch.

Messages to it: ("epoch", request, arguments of ``Dataset.batches``), ("stop",). Messages from it: ("batch", request,
Batch), ("end", request, BatchStats), ("error", request, class name, text).
"""

from __future__ import annotations

import contextlib
import dataclasses
from multiprocessing.connection import Connection
from typing import Any, Callable

from returnn_tf.datasets.processes.worker import describe_error


@dataclasses.dataclass
class BatchService:
    """Sends the batches of a dataset.

    :param factory: creates the dataset
    """

    factory: Callable[[], Any]

    def serve(self, connection: Connection) -> None:
        """Answer requests until the parent closes the connection."""
        dataset = None
        while True:
            message = connection.recv()
            if message[0] != "epoch":
                continue  # a stop that came after the end
            _, request, arguments = message
            try:
                if dataset is None:
                    dataset = self.factory()
                _send_epoch(connection, dataset, request, arguments)
            except (BrokenPipeError, ConnectionError, EOFError):
                raise
            except Exception as exc:
                connection.send(("error", request, *describe_error(exc)))


def _send_epoch(connection: Connection, dataset: Any, request: int, arguments: dict[str, Any]) -> None:
    with contextlib.closing(dataset.batches(**arguments)) as batches:
        for batch in batches:
            if connection.poll() and connection.recv()[0] == "stop":
                break
            connection.send(("batch", request, batch))
    connection.send(("end", request, dataset.batch_stats))
