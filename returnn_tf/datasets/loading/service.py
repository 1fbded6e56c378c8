"""The service of a loading process: creates the dataset, then sends the batches of each requested epoch.

Messages to it: ("epoch", request, arguments of ``Dataset.batches``, whether memory can be shared), ("taken",) for each
batch, ("stop",). Messages from it: ("batch", request, Batch), ("end", request, BatchStats), ("error", request, class
name, text, topic). At most two batches are under way.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
from multiprocessing.connection import Connection
from typing import Any, Callable

import numpy as np

from returnn_tf.datasets.core.batches.arrays import allocating
from returnn_tf.datasets.core.batches.batch import Batch
from returnn_tf.datasets.loading.shared import described, shared_zeros
from returnn_tf.datasets.processes.worker import describe_error

_UNDER_WAY = 2


@dataclasses.dataclass
class BatchService:
    """Sends the batches of a dataset.

    :param factory: creates the dataset
    """

    factory: Callable[[], Any]

    def serve(self, connection: Connection) -> None:
        """Answer requests until the parent closes the connection."""
        dataset = None
        sender = _Sender(connection)
        while True:
            message = sender.receive()
            if message[0] != "epoch":
                continue  # a stop that came after the end, or the last batches were taken
            _, request, arguments, shares = message
            try:
                if dataset is None:
                    dataset = self.factory()
                with allocating(shared_zeros if shares else np.zeros):
                    _send_epoch(sender, dataset, request, arguments)
            except (BrokenPipeError, ConnectionError, EOFError):
                raise
            except Exception as exc:
                connection.send(("error", request, *describe_error(exc)))


class _Sender:
    """Sends batches, and keeps the files of their arrays open until the parent has taken them."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._under_way: collections.deque[list[int]] = collections.deque()

    def send(self, request: int, batch: Batch) -> bool:
        """Send a batch when few enough are under way; return False to stop."""
        feed, files = described(batch.feed)
        self.connection.send(("batch", request, dataclasses.replace(batch, feed=feed)))
        self._under_way.append(files)
        while len(self._under_way) >= _UNDER_WAY or self.connection.poll():
            if self.receive()[0] == "stop":
                return False
        return True

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message, and note that a batch was taken."""
        message: tuple[Any, ...] = self.connection.recv()
        if message[0] == "taken":
            for fd in self._under_way.popleft():
                os.close(fd)
        return message


def _send_epoch(sender: _Sender, dataset: Any, request: int, arguments: dict[str, Any]) -> None:
    with contextlib.closing(dataset.batches(**arguments)) as batches:
        for batch in batches:
            if not sender.send(request, batch):
                break
    sender.connection.send(("end", request, dataset.batch_stats))
