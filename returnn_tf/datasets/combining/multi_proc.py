"""MultiProcDataset: a dataset that several processes read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetDataError, DatasetError
from returnn_tf.config.options import at_least, declared_options, option
from returnn_tf.datasets.combining.base import CorpusOfInner, FormatOfInner, inner_dataset
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.base_options import BaseOptions
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.epoch import Epoch, EpochReader
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.seq_order import narrow, occurrences
from returnn_tf.datasets.core.share import ALL, Chosen, Share
from returnn_tf.datasets.core.stream import StreamDataset
from returnn_tf.datasets.processes.process import WorkerProcess
from returnn_tf.datasets.processes.worker import answer

#: Options of the outer dataset which act on its output, whichever process reads it.
_OWN = ("name", "window", "context_window", "chunking", "min_chunk_size", "chunking_variance")


@register_dataset()
class MultiProcDataset(FormatOfInner, CorpusOfInner, StreamDataset):
    """The sequences of another dataset, read by several processes, which each have a dataset of their own.

    With ``sharding_method="seq_order"`` the result is the same as without processes; each reads every n-th sequence
    of the order. Only random numbers that run through an epoch, such as those of PostprocessingDataset and of phoneme
    sequences, are drawn for each sequence by itself; they do not depend on the number of processes.
    With ``"dedicated"`` each process reads a separate shard, which also works for streams, and the sequences of the
    processes alternate. The options that all datasets have may also be given here.

    >>> train = {
    ...     "class": "MultiProcDataset",
    ...     "dataset": {"class": "HDFDataset", "files": ["train.hdf"], "seq_ordering": "random"},
    ...     "num_workers": 4,
    ...     "buffer_size": 10,
    ... }
    """

    takes_default_order = True
    makes_order = True
    makes_shards = True

    @dataclass
    class Options(Dataset.Options):
        dataset: Any = option(help="the dataset to read")
        num_workers: int = option(help="number of processes", check=at_least(1))
        buffer_size: int = option(help="sequences that each process may read ahead", check=at_least(1))
        sharding_method: str = option(
            "seq_order", choices=("seq_order", "dedicated"), help="how the sequences are divided among the processes"
        )

    def setup(self) -> None:
        """Create the dataset here, too: for its format and order."""
        opts = self.opts
        if opts.shuffle_frames_of_nseqs:
            raise DatasetError("%s: shuffle_frames_of_nseqs is not possible with several processes" % self._owner())
        self.inner = inner_dataset(self, opts.dataset, self.name, **self._handed())
        self._dedicated = opts.sharding_method == "dedicated"
        self.is_stream = self._dedicated or self.inner.is_stream
        self._idle: list[ReadingProcesses] = []
        if not self._dedicated and (self.inner.is_stream or self.inner.endless):
            raise DatasetError(
                "%s: sharding_method 'seq_order' needs a dataset with random access, but %s has none. Use 'dedicated'"
                % (self._owner(), self.inner.described)
            )
        if not self._dedicated and self.inner.leaves_out:
            raise DatasetError(
                "%s: %s needs sharding_method 'dedicated', since otherwise the processes take turns"
                % (self._owner(), self.inner.leaves_out)
            )

    def _handed(self) -> dict[str, Any]:
        """Return the options given here for the inner dataset."""
        names = set(declared_options(BaseOptions)) - set(_OWN)
        return {name: value for name, value in self.given.items() if name in names}

    def _service(self, number: int) -> ReadingService:
        defaults = {"name": self.name, **self._handed()}
        if self._dedicated:
            shards, index = self.opts._num_shards, self.opts._shard_index
            workers = self.opts.num_workers
            defaults.update(_num_shards=shards * workers, _shard_index=index * workers + number)
        return ReadingService(self.opts.dataset, defaults, self.opts.buffer_size)

    # ---- format and order: those of the inner dataset

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format of the inner dataset."""
        return dict(self.inner.data_specs)

    def expected_num_seqs(self, epoch: int) -> Optional[int]:
        """Return the number of sequences in the order of the inner dataset."""
        order = self.inner.seq_order(epoch)
        return None if order is None else len(order)

    def lengths(self, index: int) -> Optional[dict[str, int]]:
        """Return frames by key, if the inner dataset knows them without reading."""
        return self.inner.lengths(index)

    @property
    def redraws(self) -> bool:
        """Return whether data of the inner dataset is random."""
        return self.inner.redraws

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return the lengths of the inner dataset."""
        return self.inner.seq_lengths()

    # ---- reading

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of an epoch by position; the processes start with the first one that is read."""
        if self.inner.is_stream or (self.is_stream and not chosen.is_explicit):
            return super().open_epoch(epoch, keys, chosen)
        whole = self.inner.explicit_order(epoch, chosen)
        assert whole is not None
        whole = narrow(whole)
        share = chosen.share or Share()

        def read(start: int) -> Generator[Example, None, None]:
            return self._read_order(epoch, whole, share, start)

        return _ReadEpoch(self, epoch, share.of_order(whole), keys, read)

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        """Yield the sequences of the shards of all processes."""
        workers = self.opts.num_workers
        first, *places = how.get("resume") or (0, *([(0, None)] * workers))
        arguments = [{"epoch": epoch, "start": start, "resume": resume} for start, resume in places]
        with contextlib.closing(self._from_processes(arguments, first)) as found:
            for number, sequence in found:
                places[number] = sequence.position + 1, sequence.resume
                yield dataclasses.replace(sequence, resume=[(number + 1) % workers, *places])

    def _read_order(self, epoch: int, order: NDArray[Any], share: Share, start: int) -> Generator[Example, None, None]:
        """Yield the sequences of a share of an order from a position on, of which process i reads every n-th one."""
        number = self.opts.num_workers
        shares = [Share(i, number).of_share(share, start) for i in range(number)]
        if occurrences(order).any():  # random numbers depend on earlier occurrences
            parts: list[dict[str, Any]] = [{"seq_order": order, "share": part} for part in shares]
        else:
            parts = [{"seq_order": part.of_order(order)} for part in shares]
        found = self._from_processes([{"epoch": epoch, "by_itself": True, **part} for part in parts])
        with contextlib.closing(found):
            for _, sequence in found:
                yield sequence

    def _from_processes(
        self, arguments: list[dict[str, Any]], first: int = 0
    ) -> Generator[tuple[int, Example], None, None]:
        processes = self._idle.pop() if self._idle else self._start()
        finished = False
        try:
            yield from processes.sequences(arguments, first)
            finished = True
        except GeneratorExit:
            finished = True
            raise
        finally:
            if finished:
                self._idle.append(processes)
            else:  # one of them failed
                processes.close()

    def _start(self) -> ReadingProcesses:
        services = [self._service(number) for number in range(self.opts.num_workers)]
        return ReadingProcesses(services, "dataset %r" % self.name)


class _ReadEpoch(Epoch):
    """An epoch whose sequences other processes read, from the first one that is asked for.

    :param read: position -> the sequences from there on
    """

    def __init__(
        self,
        dataset: MultiProcDataset,
        epoch: int,
        order: NDArray[Any],
        keys: list[str],
        read: Callable[[int], Generator[Example, None, None]],
    ):
        super().__init__(dataset, epoch, order, keys)
        self._read_from = read
        self._sequences: Optional[Generator[Example, None, None]] = None
        self._next_position = 0

    def _read(self, position: int) -> Example:
        if self._sequences is None or position < self._next_position:
            self.close()
            self._next_position = position
            self._sequences = self._read_from(position)
        while True:
            sequence = next(self._sequences, None)
            if sequence is None or sequence.index != self.index(self._next_position):
                text = "%s: it is left out when it is read; this needs sharding_method 'dedicated'"
                raise DatasetDataError(text % self.place(self._next_position))
            self._next_position += 1
            if self._next_position > position:
                break
        data = self.dataset.with_window({key: sequence.data[key] for key in self.keys})
        return Example(index=self.index(position), tag=sequence.tag, data=data, position=position)

    def close(self) -> None:
        """Tell the processes to stop."""
        if self._sequences is not None:
            self._sequences.close()
            self._sequences = None


@dataclasses.dataclass
class ReadingService:
    """Reads a part of the sequences of each epoch, in a process.

    Messages to it: ("epoch", request, arguments of ``Dataset.sequences``), ("credit", request) for one more sequence
    that it may send, ("stop", request). Messages from it: ("sequence", request, Example), ("end", request), ("error",
    request, class name, text, topic).

    :param spec: of the dataset
    :param defaults: options for those that it does not set
    :param buffer_size: how many sequences may be sent ahead of their use
    """

    spec: Any
    defaults: dict[str, Any]
    buffer_size: int

    def serve(self, connection: Connection) -> None:
        """Answer requests until the parent closes the connection."""
        dataset = functools.cache(self._make)

        def run(request: int, arguments: dict[str, Any]) -> None:
            with contextlib.closing(dataset().sequences(**arguments)) as sequences:  # type: ignore[type-var]
                self._send(connection, request, sequences)  # type: ignore[arg-type]

        answer(connection, connection.recv, run)

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
    """A group of processes, each with its own dataset.

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

    def sequences(
        self, arguments: Sequence[dict[str, Any]], first: int = 0
    ) -> Generator[tuple[int, Example], None, None]:
        """Yield the sequences of all processes round-robin, each with the number of its process.

        :param arguments: for each process, those of ``Dataset.sequences``
        :param first: number of the process that begins
        :raises DataError: a process failed or died
        """
        self._request += 1
        request = self._request
        for worker, keywords in zip(self._workers, arguments):
            worker.send("epoch", request, keywords)
        count = len(self._workers)
        reading = [number % count for number in range(first, first + count)]
        try:
            while reading:
                for number in list(reading):
                    worker = self._workers[number]
                    sequence = self._next(worker, request)
                    if sequence is None:
                        reading.remove(number)
                    else:
                        worker.send("credit", request)
                        yield number, sequence
        finally:
            for number in reading:
                self._workers[number].send("stop", request)

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
