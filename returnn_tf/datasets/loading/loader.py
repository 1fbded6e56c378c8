"""BatchLoader: batches read and padded ahead of time in a separate process."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import threading
import weakref
from multiprocessing.connection import Connection
from typing import Any, Callable, Optional, Union

import numpy as np

from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError, DataError, DatasetDataError, DatasetError
from returnn_tf.datasets.config import DatasetOfConfig
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.batches.batch import Batch, allocating
from returnn_tf.datasets.core.batches.batching import BatchStats
from returnn_tf.datasets.loading.shared import attached, can_share, detached, shared_zeros
from returnn_tf.datasets.processes.process import ERRORS, death_notice, end_process, start_process
from returnn_tf.datasets.processes.worker import answer
from returnn_tf.logging.log import log

_UNDER_WAY = 2


@dataclasses.dataclass
class BatchService:
    """Sends the batches of a dataset from the loading process; at most two of them are under way.

    Messages to it: ("epoch", request, arguments of ``Dataset.batches``, whether memory can be shared), ("taken",) for
    each batch, ("stop",). From it: ("batch", request, Batch), ("end", request, BatchStats), ("error", request, class
    name, text, topic).

    :param factory: creates the dataset
    """

    factory: Callable[[], Any]

    def serve(self, connection: Connection) -> None:
        """Answer requests until the parent closes the connection."""
        dataset = functools.cache(self.factory)
        sender = _Sender(connection)

        def run(request: int, arguments: dict[str, Any], shares: bool) -> None:
            with allocating(shared_zeros if shares else np.zeros):
                _send_epoch(sender, dataset(), request, arguments)

        answer(connection, sender.receive, run)


class _Sender:
    """Sends batches, and keeps the files of their arrays open until the parent has taken them."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._under_way: collections.deque[list[int]] = collections.deque()

    def send(self, request: int, batch: Batch) -> bool:
        """Send a batch when few enough are under way; return False to stop."""
        feed, files = detached(batch.feed)
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


_CLOSE_SECONDS = 2.0


class BatchLoader:
    """Loads batches of a dataset in another process; ``next`` returns immediately while that keeps up.

    >>> from returnn_tf.datasets import BatchLoader, Dataset
    >>> dataset = Dataset.from_config({"class": "Task12AX", "num_seqs": 4})
    >>> with BatchLoader(dataset) as loader:
    ...     [batch.seq_tags for batch in loader.batches(epoch=1, batch_size=1000, max_seqs=2)]
    [['seq-0', 'seq-1'], ['seq-2', 'seq-3']]

    At most ``prefetch`` batches are buffered here, two more are in transit. Large arrays are padded in memory that both
    processes share (on Linux). The process ends with ``close``, or within
    some seconds of this process, however that ends. Its errors are raised here.

    :param source: a dataset, or a function without arguments that creates one
    :param name: for messages; default: the name of the dataset
    :param prefetch: number of batches to buffer
    """

    def __init__(self, source: Union[Dataset, Callable[[], Dataset]], *, name: Optional[str] = None, prefetch: int = 8):
        if prefetch < 1:
            raise DatasetError("BatchLoader: prefetch is %d, but must be at least 1" % prefetch)
        self.name = name or getattr(source, "name", None) or "dataset"
        self.batch_stats = BatchStats()
        factory = _Same(source) if isinstance(source, Dataset) else source
        self._process, self._connection = start_process(BatchService(factory))
        self._buffer = _Buffer(prefetch)
        self._request = 0
        self._current: Optional[LoadedBatches] = None
        self._sending = threading.Lock()
        self._thread = threading.Thread(
            target=_receive,
            args=(self._connection, self._sending, self._buffer, self.pid),
            name="loader of %s" % self.name,
            daemon=True,
        )
        self._thread.start()
        self._finalizer = weakref.finalize(
            self, _shut_down, self._process, self._connection, self._buffer, self._thread
        )

    @classmethod
    def from_config(cls, config: Config, name: str, *, prefetch: int = 8, **defaults: Any) -> BatchLoader:
        """Create a loader for the dataset ``name`` of a config, whose files are executed again in the loading process.

        :param defaults: as for ``dataset_from_config``
        """
        return cls(DatasetOfConfig(config, name, defaults), name=name, prefetch=prefetch)

    @property
    def pid(self) -> int:
        """Return the process id of the loading process."""
        return int(self._process.pid)

    def batches(self, epoch: int = 1, *, start_batch: int = 0, **options: Any) -> LoadedBatches:
        """Start to load the batches of an epoch; those of an earlier call end.

        :param epoch: from 1
        :param start_batch: number of the first batch wanted; the ones before are not read
        :param options: as for ``Dataset.batches``
        """
        if not self._finalizer.alive:
            raise DatasetDataError("the loader of dataset %r is closed" % self.name)
        if self._current is not None:
            self._current.close()
        self._request += 1
        self._buffer.expect(self._request)
        arguments = {"epoch": epoch, "start_batch": start_batch, **options}
        self._send(("epoch", self._request, arguments, can_share(self.pid)))
        self._current = LoadedBatches(self, self._request, epoch, start_batch)
        return self._current

    def _send(self, message: Any) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except (BrokenPipeError, ConnectionError):
            pass  # it has exited; reading from the buffer raises the reason
        except Exception as exc:
            raise DatasetError(
                "batch options of dataset %r cannot be sent to the loading process: %s. Make functions options of the "
                "dataset instead" % (self.name, exc)
            ) from exc

    def _next(self, request: int) -> Optional[Batch]:
        """Return the next batch of a request; None at its end."""
        kind, *content = self._buffer.get()
        if kind == "batch":
            batch: Batch = content[1]
            return batch
        if kind == "end":
            self.batch_stats = content[1]
            return None
        if kind == "error":
            raise ERRORS[content[1]](content[2], topic=content[3])
        raise DatasetDataError(death_notice(self._process, "the loading process of dataset %r" % self.name))

    def close(self) -> None:
        """Terminate the loading process. May be called again."""
        self._finalizer()

    def __enter__(self) -> BatchLoader:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class LoadedBatches:
    """Iterator over the batches of one epoch.

    ``position`` is the number of the next batch: passed as ``start_batch``, it lets another run resume exactly here.
    """

    def __init__(self, loader: BatchLoader, request: int, epoch: int, start_batch: int):
        self.epoch = epoch
        self.position = start_batch
        self._loader = loader
        self._request = request
        self._done = False

    def __iter__(self) -> LoadedBatches:
        return self

    def __next__(self) -> Batch:
        if self._done:
            raise StopIteration
        try:
            batch = self._loader._next(self._request)
        except (ConfigError, DataError):  # the process has ended the epoch, or is dead
            self._done = True
            raise
        except BaseException:  # an interrupt
            self.close()
            raise
        if batch is None:
            self._done = True
            raise StopIteration
        self.position = batch.number + 1
        return batch

    def close(self) -> None:
        """Stop loading this epoch."""
        if not self._done:
            self._done = True
            self._loader._buffer.expect(0)
            self._loader._send(("stop",))


class _Same:
    """A factory for an existing dataset, which is rebuilt from its options when unpickled."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __call__(self) -> Dataset:
        return self.dataset


class _Buffer:
    """A bounded queue between the receiving thread and the user that drops messages of abandoned requests."""

    def __init__(self, size: int):
        self._size = size
        self._items: collections.deque[tuple[Any, ...]] = collections.deque()
        self._changed = threading.Condition()
        self._request = 0
        self._ended = False

    def expect(self, request: int) -> None:
        """Accept only messages of this request from now on."""
        with self._changed:
            self._request = request
            self._items.clear()
            self._changed.notify_all()

    def put(self, message: tuple[Any, ...]) -> None:
        """Wait for space, and add a message. Messages of another request are dropped."""
        with self._changed:
            while len(self._items) >= self._size and message[1] == self._request and not self._ended:
                self._changed.wait()
            if message[1] == self._request:
                self._items.append(message)
                self._changed.notify_all()

    def get(self) -> tuple[Any, ...]:
        """Wait for a message; ("dead",) if no more can arrive."""
        with self._changed:
            while not self._items and not self._ended:
                self._changed.wait()
            message = self._items.popleft() if self._items else ("dead",)
            self._changed.notify_all()
            return message

    def end(self) -> None:
        """Close the queue."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _receive(connection: Any, sending: threading.Lock, buffer: _Buffer, pid: int) -> None:
    """Receive messages, and acknowledge each batch in the buffer; the body of the receiving thread."""
    try:
        while True:
            message = connection.recv()
            if message[0] == "log":
                log.pass_on(message[1], message[2])
                continue
            if message[0] == "batch":
                message[2].feed = attached(message[2].feed, pid)
            buffer.put(message)
            if message[0] == "batch":
                with sending:
                    connection.send(("taken",))
    except (EOFError, OSError, TypeError):  # TypeError: closed by the other thread while waiting
        pass
    finally:
        buffer.end()


def _shut_down(process: Any, connection: Any, buffer: _Buffer, thread: threading.Thread) -> None:
    """Terminate the loading process: it exits when the connection closes, else it is killed."""
    buffer.end()
    end_process(process, connection)
    thread.join(_CLOSE_SECONDS)
