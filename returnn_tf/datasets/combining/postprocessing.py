"""PostprocessingDataset: functions of a config applied to the sequences of another dataset."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DatasetDataError, DatasetError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.combining.base import CorpusOfInner, inner_dataset, refuse_own_order
from returnn_tf.datasets.combining.mapper import Mapper
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import ALL, Chosen, Share
from returnn_tf.datasets.core.stream import StreamDataset, StreamedEpoch
from returnn_tf.datasets.processes.process import WorkerProcess
from returnn_tf.datasets.processes.worker import answer
from returnn_tf.tensor import Data, Dim, batch_dim, parse_data_key
from returnn_tf.util.random_state import set_state, state_of


@register_dataset()
class PostprocessingDataset(CorpusOfInner, StreamDataset):
    """The sequences of another dataset, changed by a function of the config.

    ``map_seq(data, seq_idx=, epoch=, rng=)`` gets one sequence and returns it. ``map_seq_stream(sequences, epoch=,
    rng=)`` gets an iterator over all and yields as many as it likes, in any order. A sequence is a dict of named
    tensors: ``data["data"].raw_tensor`` is an array; it also has ``seq_tag``, ``seq_idx`` and ``complete_frac``.
    Format and order are those of the inner dataset; ``map_outputs`` declares another format, as ``extern_data`` does.

    ``rng``, a ``numpy.random.RandomState``, depends on the epoch and runs through all its sequences. Each of
    ``num_workers`` processes has its own. An epoch with ``map_seq`` is resumed at the next sequence, with
    ``map_seq_stream`` by processing the sequences before again, since such a function keeps what it likes.

    >>> def louder(data, *, rng, **_):
    ...     data["data"].raw_tensor *= rng.uniform(0.5, 2.0)
    ...     return data
    >>> train = {"class": "PostprocessingDataset", "dataset": {"class": "HDFDataset", "files": []}, "map_seq": louder}
    """

    makes_shards = True

    @dataclass
    class Options(Dataset.Options):
        dataset: Any = option(help="the dataset to process")
        map_seq: Optional[Callable[..., Any]] = option(None, help="function of a sequence that returns it")
        map_seq_stream: Optional[Callable[..., Any]] = option(
            None, help="function of an iterator over all sequences that yields sequences"
        )
        map_outputs: Optional[dict[str, Any]] = option(
            None, help="key -> format of the result, as in extern_data; default: that of the dataset"
        )
        map_seq_stream_preserves_num_seqs: Optional[bool] = option(
            None, help="map_seq_stream yields as many sequences as it gets; default: its attribute preserves_num_seqs"
        )
        buf_size: int = option(1, help="sequences that each process may have ahead", check=at_least(1))
        num_workers: int = option(0, help="number of processes that apply the function; 0 = none", check=at_least(0))

    def setup(self) -> None:
        """Create the inner dataset."""
        opts = self.opts
        if (opts.map_seq is None) == (opts.map_seq_stream is None):
            raise DatasetError("%s: give one of map_seq and map_seq_stream" % self._owner())
        refuse_own_order(self)
        self.inner = inner_dataset(self, opts.dataset, "%s_dataset" % self.name)
        self.is_stream = opts.map_seq is None or self.inner.is_stream
        stays = opts.map_seq_stream_preserves_num_seqs
        if stays is None:
            stays = bool(getattr(opts.map_seq_stream, "preserves_num_seqs", False))
        self._preserves_num_seqs = opts.map_seq is not None or stays
        one_by_one = ("share", "seq_list", "seq_order", "by_itself", "nth")
        self.takes = frozenset(("share",) if opts.map_seq is None else one_by_one)
        self._idle: list[MapProcesses] = []
        self._mapper: Optional[Mapper] = None
        if opts.map_outputs is not None:
            self._declared = {key: self._declared_spec(key, given) for key, given in opts.map_outputs.items()}

    def _declared_spec(self, key: str, given: Any) -> DataSpec:
        try:
            return _spec_of_data(_template(key, given))
        except ConfigError as exc:
            raise DatasetError("%s: map_outputs: %s" % (self._owner(), exc)) from None

    # ---- format and order

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the declared format, by default that of the inner dataset."""
        return dict(self.inner.data_specs) if self.opts.map_outputs is None else dict(self._declared)

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return dims and numbers of axes, by default as the inner dataset declares them."""
        return self.inner.num_outputs if self.opts.map_outputs is None else super().num_outputs

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences of the inner dataset, None if the function may change it."""
        return self.inner.num_seqs if self._preserves_num_seqs else None

    def expected_num_seqs(self, epoch: int) -> Optional[int]:
        """Return None; the progress is that of the inner dataset."""
        return None

    def tag(self, index: int) -> str:
        """Return the tag in the inner dataset."""
        return StreamDataset.tag(self, index) if self.is_stream else super().tag(index)

    def file_of(self, index: int) -> str:
        """Return the file in the inner dataset."""
        return "" if self.is_stream else super().file_of(index)

    # ---- reading

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of an epoch by position, always read one after the other."""
        if self.opts.map_seq is None:
            if chosen.is_explicit:
                raise DatasetError(
                    "%s: map_seq_stream may change order and number of the sequences, so they can't be chosen"
                    % self._owner()
                )
            if chosen.share is not None and chosen.share.done:
                raise DatasetDataError(
                    "%s: which sequences remain of an epoch is not defined with map_seq_stream if the number of "
                    "processes changes; start the epoch over, or use as many processes as before" % self._owner()
                )
        return StreamedEpoch(self, epoch, keys, chosen)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read and process a single sequence, with a separate random generator."""
        return self.read_again(index, epoch, keys, 0)

    @property
    def redraws(self) -> bool:
        """Return True: the function gets random numbers."""
        return True

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read and process a repeated sequence."""
        with contextlib.closing(self.open_epoch(epoch, list(keys), Chosen.single(index, nth))) as reader:
            return reader.sequence(0).data

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        """Yield the processed sequences, those of a stream with indices that other processes do not have."""
        if self.opts.map_seq is not None:
            yield from self._processed(epoch, dict(how), how.get("resume"))
            return
        share = how.get("share") or Share()
        for number, sequence in enumerate(self._processed(epoch, how)):
            yield dataclasses.replace(sequence, index=number * share.size + share.rank)

    def _processed(self, epoch: int, how: dict[str, Any], resume: Optional[list[Any]] = None) -> Iterator[Example]:
        """Yield the processed sequences.

        :param resume: of the last sequence before those of ``map_seq`` that are wanted: a number of sequences, what the
            inner dataset needs to go on behind them, the states of the random generators there, and the number of
            sequences before those wanted, which some of them may be processed again for
        """
        workers = self.opts.num_workers
        how.pop("resume", None)
        start, of_inner, states, done = resume or (0, None, None, 0)
        if how.get("by_itself") and not self.is_stream:
            yield from self._processed_by_itself(epoch, how, start, of_inner, states or 0)
            return
        if not workers:
            rng = np.random.RandomState(self.epoch_seed(epoch))
            if states:
                set_state(rng, states[0])
            with contextlib.closing(self._inputs(epoch, how, start, of_inner)) as inputs:
                mark = start, of_inner, states
                for sequence in self._function().apply(inputs, epoch, rng):
                    if self.opts.map_seq is not None:
                        count = sequence.position + 1
                        if not count % _EVERY:
                            mark = count, sequence.resume, [state_of(rng)]
                        sequence = dataclasses.replace(sequence, resume=[*mark, count])
                    if self.opts.map_seq is None or count > done:
                        yield sequence
            return
        # first, so that processes do not inherit what reading opens
        processes = (
            self._idle.pop()
            if self._idle
            else MapProcesses(self._function(), workers, self.opts.buf_size, "dataset %r" % self.name)
        )
        seed = self.epoch_seed(epoch)
        seeds = [(seed * 683859 * workers + 30411 * number) % (2**32 - 1) for number in range(workers)]
        finished = False
        try:
            with contextlib.closing(self._inputs(epoch, how, start, of_inner)) as inputs:
                yield from processes.apply(inputs, epoch, seeds, start, states)
            finished = True
        finally:
            if finished:
                self._idle.append(processes)
            else:
                processes.close()

    def _processed_by_itself(
        self, epoch: int, how: Mapping[str, Any], start: int, of_inner: Any, num_tried: int
    ) -> Iterator[Example]:
        """Yield the processed sequences, each with a separate random generator.

        :param start: number of sequences before
        :param of_inner: what the inner dataset needs to go on
        :param num_tried: number of those before in the order, some of which may be left out
        """
        counts = enumerate(zip(*(column[num_tried:] for column in self.chosen_occurrences(epoch, Chosen(**how)))))
        with contextlib.closing(self._inputs(epoch, how, start, of_inner)) as inputs:
            for sequence in inputs:
                tried, nth = next((tried, nth) for tried, (index, nth) in counts if index == sequence.index)
                rng = np.random.RandomState([self.epoch_seed(epoch), sequence.index, nth])
                by_index = dataclasses.replace(sequence, position=sequence.index)  # for map_seq
                for result in self._function().apply([by_index], epoch, rng):
                    yield _resumable(dataclasses.replace(result, position=sequence.position), num_tried + tried + 1)

    def _inputs(
        self, epoch: int, how: Mapping[str, Any], start: int = 0, resume: Any = None
    ) -> Generator[Example, None, None]:
        """Yield the sequences of the inner dataset from a position on."""
        with contextlib.closing(self.inner.open_epoch(epoch, self.inner.data_keys, Chosen(**how))) as reader:
            if start:
                reader.jump(start, resume)
            position = start
            while reader.has(position):
                sequence = reader.sequence(position)
                yield Example(
                    index=sequence.index,
                    tag=sequence.tag,
                    data=sequence.data,
                    position=position,
                    complete=reader.complete(position),
                    resume=reader.resume(position),
                )
                position += 1
                reader.release(position)

    def _function(self) -> Mapper:
        if self._mapper is None:
            self._mapper = Mapper(
                owner=self._owner(),
                map_seq=self.opts.map_seq,
                map_seq_stream=self.opts.map_seq_stream,
                inputs=dict(self.inner.data_specs),
                outputs=self.make_specs(),
                preserves_num_seqs=self._preserves_num_seqs,
            )
        return self._mapper


_EVERY = 8  # sequences after which the state of a generator is stored, which takes half as long as to process one


def _resumable(sequence: Example, states: Any) -> Example:
    """Return a processed sequence with what is needed to go on behind it.

    :param states: of the random generators
    """
    count = sequence.position + 1
    return dataclasses.replace(sequence, resume=[count, sequence.resume, states, count])


def _template(key: str, given: Any) -> Data:
    """Return the template of an output, from the options of ``extern_data`` or from dims without batch."""
    if isinstance(given, Data):
        return given
    dims = given.get("dims") if isinstance(given, Mapping) else getattr(given, "dims", None)
    if dims is None:
        return parse_data_key(key, given)
    options = dict(given) if isinstance(given, Mapping) else {"dtype": given.dtype, "sparse_dim": given.sparse_dim}
    if not any(isinstance(dim, Dim) and dim.is_batch for dim in dims):
        dims = (batch_dim, *dims)
    return parse_data_key(key, {**options, "dims": tuple(dims)})


def _spec_of_data(data: Data) -> DataSpec:
    """Return the format that a template describes, without batch."""
    sizes = [dim.size for dim in data.dims if not dim.is_batch]
    dtype = "object" if data.dtype == "string" else data.dtype
    inner = sizes[-1] if len(sizes) > 1 else 1
    labels = data.sparse_dim.size if data.sparse_dim is not None else inner
    return DataSpec(dim=labels or 0, ndim=len(sizes), dtype=dtype, shape=tuple(sizes[1:]))


@dataclasses.dataclass
class MapService:
    """Applies the function to the sequences that the parent sends, in a process.

    Messages to it: ("epoch", request, epoch, seed, state of the random generator or None), ("input", request, Example),
    ("end", request). From it: ("pull", request) when it waits for another sequence, ("sequence", request, Example,
    state), ("end", request), ("error", request, class name, text, topic).
    """

    mapper: Mapper

    def serve(self, connection: Connection) -> None:
        """Answer requests until the parent closes the connection."""

        def run(request: int, epoch: int, seed: int, state: Optional[list[Any]]) -> None:
            inputs = _inputs(connection, request)
            rng = np.random.RandomState(seed)
            if state is not None:
                set_state(rng, state)
            for sequence in self.mapper.apply(inputs, epoch, rng):
                state = None if self.mapper.map_seq is None else state_of(rng)
                connection.send(("sequence", request, sequence, state))
            connection.send(("end", request))

        answer(connection, connection.recv, run)


def _inputs(connection: Connection, request: int) -> Iterator[Example]:
    while True:
        connection.send(("pull", request))
        kind, number, *content = connection.recv()
        if number == request and kind == "end":
            return
        if number == request and kind == "input":
            yield content[0]


class _State:
    """The state of one process."""

    def __init__(self, rng: Optional[list[Any]]) -> None:
        self.results: collections.deque[tuple[Example, Optional[list[Any]]]] = collections.deque()
        self.rng = rng  # behind the results that were taken
        self.num_pulled = 0
        self.num_sent = 0
        self.ended = False
        self.error: Optional[Exception] = None

    @property
    def num_ahead(self) -> int:
        """Return the number of sequences that it has, but not taken or not returned yet."""
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

    def apply(
        self,
        sequences: Iterator[Example],
        epoch: int,
        seeds: list[int],
        start: int = 0,
        rngs: Optional[list[Any]] = None,
    ) -> Generator[Example, None, None]:
        """Yield the results of all processes round-robin.

        :param seeds: of the random generator of each process
        :param start: number of sequences before these, and of results
        :param rngs: states of the generators there
        :raises DataError: a function failed, or a process died
        """
        self._request += 1
        self._states = [_State(rng) for rng in rngs or [None] * len(self._workers)]
        self._num_dealt, self._all_dealt = start, False
        for worker, state, seed in zip(self._workers, self._states, seeds):
            worker.send("epoch", self._request, epoch, seed, state.rng)
            threading.Thread(target=self._receive, args=(worker, state), daemon=True).start()
        number = start
        first = start % len(self._workers)
        working = self._states[first:] + self._states[:first]
        while working:
            for state in list(working):
                found = self._next(state, sequences)
                if found is None:
                    working.remove(state)
                else:
                    result, state.rng = found
                    result = dataclasses.replace(result, position=number)
                    yield result if state.rng is None else _resumable(result, [other.rng for other in self._states])
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
                    state.results.append(message[2:4])
                else:
                    state.ended = True
                self._changed.notify_all()

    def _next(self, state: _State, sequences: Iterator[Example]) -> Optional[tuple[Example, Optional[list[Any]]]]:
        """Return the next result of a process and the state of its generator, or None at its end.

        Sequences are dealt to all processes while it waits.
        """
        while True:
            with self._changed:
                if state.results:
                    return state.results.popleft()
                if state.error is not None:  # raised at its place in the epoch, whichever process is the fastest
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
