"""Several processes that each read a part of the sequences of an epoch.

Messages to a process: ("epoch", request, arguments of ``Dataset.sequences``), ("credit", request) for one more sequence
that it may send, ("stop", request). Messages from it: ("sequence", request, Sequence), ("end", request).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Optional

from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.processes.client import WorkerProcess
from returnn_tf.datasets.processes.worker import describe_error


@dataclasses.dataclass
class ReadingService:
    """Reads sequences of a dataset.

    :param spec: of the dataset
    :param defaults: options for those that it does not set
    :param buffer_size: how many sequences may be sent ahead of their use
    """

    spec: Any
    defaults: dict[str, Any]
    buffer_size: int

    def serve(self, connection: Connection) -> None:
        """Answer requests until the parent closes the connection."""
        dataset: Optional[Dataset] = None
        while True:
            message = connection.recv()
            if message[0] != "epoch":
                continue  # a credit or stop that came after the end
            request, arguments = message[1:]
            try:
                if dataset is None:
                    dataset = self._make()
                with contextlib.closing(dataset.sequences(**arguments)) as sequences:  # type: ignore[type-var]
                    self._send(connection, request, sequences)  # type: ignore[arg-type]
            except (ConnectionError, EOFError):
                raise
            except Exception as exc:
                connection.send(("error", request, *describe_error(exc)))

    def _make(self) -> Dataset:
        spec = self.spec
        if isinstance(spec, Dataset):  # after a fork: open files must not be shared
            rebuild, arguments = spec.__reduce__()
            spec = rebuild(*arguments)
        return Dataset.from_config(spec, **self.defaults)

    def _send(self, connection: Connection, request: int, sequences: Generator[Example, None, None]) -> None:
        credit = self.buffer_size
        for sequence in sequences:
            while not credit or connection.poll():
                kind, number = connection.recv()[:2]
                if number == request and kind == "stop":
                    return
                credit += number == request and kind == "credit"
            connection.send(("sequence", request, sequence))
            credit -= 1
        connection.send(("end", request))


class ReadingProcesses:
    """A group of processes, each with a dataset of its own.

    :param services: one for each process
    :param what: the dataset, for messages
    """

    def __init__(self, services: Sequence[ReadingService], what: str):
        self._workers = [
            WorkerProcess(service, "process %d of %s" % (number, what)) for number, service in enumerate(services)
        ]
        self._request = 0

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [worker.pid for worker in self._workers]

    def sequences(self, arguments: Sequence[dict[str, Any]]) -> Generator[Example, None, None]:
        """Yield the sequences of all processes, one of each in turn as long as it has any.

        :param arguments: for each process, those of ``Dataset.sequences``
        :raises DataError: a process failed or died
        """
        self._request += 1
        request = self._request
        for worker, keywords in zip(self._workers, arguments):
            worker.send("epoch", request, keywords)
        reading = list(self._workers)
        try:
            while reading:
                for worker in list(reading):
                    sequence = self._next(worker, request)
                    if sequence is None:
                        reading.remove(worker)
                    else:
                        worker.send("credit", request)
                        yield sequence
        finally:
            for worker in reading:
                worker.send("stop", request)

    def _next(self, worker: WorkerProcess, request: int) -> Optional[Example]:
        while True:
            message = worker.receive()
            if message[1] != request:
                continue  # of an epoch that was left
            if message[0] == "end":
                return None
            sequence: Example = message[2]
            return sequence

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()
