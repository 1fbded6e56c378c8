"""Several processes that apply functions of configs to the sequences which they are dealt in turn.

Messages to a process: ("epoch", request, epoch, seed), ("input", request, Sequence), ("end", request). From it:
("pull", request) when it waits for another sequence, ("sequence", request, Sequence), ("end", request).
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection
from typing import Optional

import numpy as np

from returnn_tf.datasets.combining.mapping.mapper import Mapper
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.processes.client import WorkerProcess
from returnn_tf.datasets.processes.worker import describe_error


@dataclasses.dataclass
class MapService:
    """Applies the function to the sequences that the parent sends."""

    mapper: Mapper

    def serve(self, connection: Connection) -> None:
        """Answer requests until the parent closes the connection."""
        while True:
            message = connection.recv()
            if message[0] != "epoch":
                continue  # sent after the function had ended
            request, epoch, seed = message[1:]
            try:
                inputs = _inputs(connection, request)
                for sequence in self.mapper.apply(inputs, epoch, np.random.RandomState(seed)):
                    connection.send(("sequence", request, sequence))
                connection.send(("end", request))
            except (ConnectionError, EOFError):
                raise
            except Exception as exc:
                connection.send(("error", request, *describe_error(exc)))


def _inputs(connection: Connection, request: int) -> Iterator[Example]:
    while True:
        connection.send(("pull", request))
        kind, number, *content = connection.recv()
        if number == request and kind == "end":
            return
        if number == request and kind == "input":
            yield content[0]


class _State:
    """What is known of one process."""

    def __init__(self) -> None:
        self.results: collections.deque[Example] = collections.deque()
        self.num_pulled = 0
        self.num_sent = 0
        self.ended = False
        self.error: Optional[Exception] = None

    @property
    def num_ahead(self) -> int:
        """Return the sequences that it has, but not taken or not given back yet."""
        done = self.ended or self.error is not None
        return 0 if done else max(self.num_sent - self.num_pulled, 0) + len(self.results)


class MapProcesses:
    """A group of processes with the same function.

    :param num_ahead: how many sequences each may have ahead of their use; more if its function asks for them
    :param what: the dataset, for messages
    """

    def __init__(self, mapper: Mapper, num_workers: int, num_ahead: int, what: str):
        self._workers = [
            WorkerProcess(MapService(mapper), "process %d of %s" % (number, what)) for number in range(num_workers)
        ]
        self._limit = num_workers * num_ahead
        self._changed = threading.Condition()
        self._request = 0
        self._states: list[_State] = []
        self._num_dealt = 0
        self._all_dealt = False

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [worker.pid for worker in self._workers]

    def apply(self, sequences: Iterator[Example], epoch: int, seeds: list[int]) -> Generator[Example, None, None]:
        """Yield the results of all processes, one of each in turn as long as it has any.

        :param seeds: of the random generator of each process
        :raises DataError: a function failed, or a process died
        """
        self._request += 1
        self._states = [_State() for _ in self._workers]
        self._num_dealt, self._all_dealt = 0, False
        for worker, state, seed in zip(self._workers, self._states, seeds):
            worker.send("epoch", self._request, epoch, seed)
            threading.Thread(target=self._receive, args=(worker, state), daemon=True).start()
        number = 0
        working = list(self._states)
        while working:
            for state in list(working):
                result = self._next(state, sequences)
                if result is None:
                    working.remove(state)
                else:
                    yield dataclasses.replace(result, position=number)
                    number += 1

    def _receive(self, worker: WorkerProcess, state: _State) -> None:
        """Take all messages of one process in an epoch; the body of a thread."""
        while not state.ended and state.error is None:
            try:
                message = worker.receive()
            except Exception as exc:
                message = ("failed", exc)
            with self._changed:
                kind = message[0]
                if kind == "failed":
                    state.error = message[1]
                elif kind == "pull":
                    state.num_pulled += 1
                elif kind == "sequence":
                    state.results.append(message[2])
                else:
                    state.ended = True
                self._changed.notify_all()

    def _next(self, state: _State, sequences: Iterator[Example]) -> Optional[Example]:
        """Return the next result of a process, dealing sequences to all of them meanwhile; None at its end."""
        while True:
            with self._changed:
                if state.results:
                    return state.results.popleft()
                if state.error is not None:  # told at its place in the epoch, whichever process is the fastest
                    raise state.error
                if state.ended:
                    return None
                waits = state.num_pulled > state.num_sent
                if self._all_dealt or not (waits or sum(s.num_ahead for s in self._states) < self._limit):
                    self._changed.wait()
                    continue
            self._deal(sequences)

    def _deal(self, sequences: Iterator[Example]) -> None:
        sequence = next(sequences, None)
        if sequence is None:
            self._all_dealt = True
            for worker in self._workers:
                worker.send("end", self._request)
            return
        number = self._num_dealt % len(self._workers)
        self._num_dealt += 1
        with self._changed:
            self._states[number].num_sent += 1
        self._workers[number].send("input", self._request, sequence)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()
