"""One pass over a dataset: sequences by position in the order of the epoch, and those that are broken."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, DatasetDataError, error_name
from returnn_tf.datasets.core.data_spec import DataSpec, Example, num_frames
from returnn_tf.datasets.core.read_ahead import ReadAhead
from returnn_tf.datasets.core.seq_order import narrow
from returnn_tf.logging.log import log

_MOST_LISTED = 100  # broken sequences


#: A sequence or a part of it: its position in the order of the epoch; by data key, as tuples in the order of the
#: counted keys, its first frame (negative: that many zero frames first, of the context) and the frame after its last
#: one (beyond the sequence: zero frames at the end).
Slice = tuple[int, tuple[int, ...], tuple[int, ...]]


class Block(NamedTuple):
    """Several sequences of an epoch.

    :param indices: positions in the corpus
    :param data: key -> one array for each sequence
    """

    indices: list[int]
    tags: list[str]
    data: dict[str, list[NDArray[Any]]]


def place_of(dataset: Any, tag: str, position: int, epoch: int, file: str = "") -> str:
    """Return the dataset and sequence for messages."""
    where = ", file %r" % file if file else ""
    return "dataset %r%s, sequence %r (position %d of epoch %d)" % (dataset.name, where, tag, position, epoch)


class EpochReader:
    """The sequences of one epoch by position; also what a user's chunking function receives, or a view of it.

    Positions are requested in mostly ascending order; released ones are not requested again.

    :param dataset: ``datasets.base.Dataset``
    :param epoch: number, from 1
    :param keys: the data keys to read
    """

    def __init__(self, dataset: Any, epoch: int, keys: list[str]):
        self.dataset = dataset
        self.epoch = epoch
        self.keys = keys
        #: the keys whose data is needed
        self.needed = keys
        #: what was wrong with the sequences that are left out, by position; see the option ``skip_broken_seqs``
        self.broken: dict[int, str] = {}
        self._kept: dict[int, Example] = {}

    def only_count(self, keys: Collection[str]) -> None:
        """Deliver some of the keys no more, of which only the lengths are needed; called before anything is read."""
        self.needed = [key for key in self.needed if key not in keys]

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None: endless, or not known yet."""
        raise NotImplementedError("%s.num_seqs" % type(self).__name__)

    @property
    def specs(self) -> dict[str, DataSpec]:
        """Return the format of each data key."""
        specs: dict[str, DataSpec] = self.dataset.data_specs
        return specs

    def has(self, position: int) -> bool:
        """Return whether there is a sequence at this position."""
        raise NotImplementedError("%s.has" % type(self).__name__)

    def index(self, position: int) -> int:
        """Return the corpus position of the sequence at this position of the epoch."""
        raise NotImplementedError("%s.index" % type(self).__name__)

    def tag(self, position: int) -> str:
        """Return the tag of the sequence at this position."""
        raise NotImplementedError("%s.tag" % type(self).__name__)

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key."""
        return self.sequence(position).lengths

    def sequence(self, position: int) -> Example:
        """Return the sequence at this position.

        :raises DataError: naming dataset and tag, whatever went wrong while reading
        """
        raise NotImplementedError("%s.sequence" % type(self).__name__)

    def is_usable(self, position: int) -> bool:
        """Return whether a sequence can be read; tested only with ``skip_broken_seqs``, which keeps the sequence."""
        if not self.dataset.opts.skip_broken_seqs:
            return True
        if position not in self.broken:
            try:
                self.sequence(position)
                return True
            except DataError as exc:
                self.broken[position] = str(exc) if len(self.broken) < _MOST_LISTED else ""
        return False

    def report_broken(self, num_used: int) -> None:
        """Log which sequences were left out; called at the end of the epoch.

        :param num_used: number of others
        :raises DataError: all of them were
        """
        if not self.broken:
            return
        reasons = [text for text in self.broken.values() if text]
        if not num_used:
            raise DatasetDataError(
                "%s: none of the %d sequences of epoch %d can be read; the first error is: %s"
                % (self.dataset.described, len(self.broken), self.epoch, reasons[0])
            )
        more = len(self.broken) - len(reasons)
        log.warn(
            "%s, epoch %d: %d sequences could not be read and were left out:%s%s"
            % (
                self.dataset.described,
                self.epoch,
                len(self.broken),
                "".join("\n  " + text for text in reasons),
                "\n  and %d others" % more if more else "",
            )
        )

    def resume(self, position: int) -> Any:
        """Return what `jump` needs beside the position behind the sequence at this one, as JSON; None: nothing.

        :param position: of a sequence that was read; not released, or the last one before those that are not
        """
        return None

    def jump(self, position: int, resume: Any = None) -> None:
        """Pass over the sequences before a position, before anything is read; here they are read again.

        :param resume: of the sequence before the position, see `resume`; None: unknown, or nothing is needed
        """
        log.write(
            3,
            "%s, epoch %d: reading the %d sequences before the next one again, since its data has no state to resume "
            "from" % (self.dataset.described, self.epoch, position),
        )
        for passed in range(position):
            if not self.has(passed):
                return
            self.release(passed)

    def whole_slices(self, keys: Sequence[str], start: int = 0) -> Iterator[Slice]:
        """Yield each usable sequence as a slice from 0 to its number of frames, for these keys.

        :param start: position to begin at
        """
        begins = (0,) * len(keys)
        position = start
        while self.has(position):
            if self.is_usable(position):
                lengths = self.lengths(position)
                yield position, begins, tuple([lengths.get(key, 0) for key in keys])
            position += 1

    def block(self, positions: Sequence[int], keys: Sequence[str]) -> Block:
        """Return the sequences at these positions, which ascend.

        :param keys: the data keys that are needed
        """
        found = {position: self.sequence(position) for position in positions}
        sequences = [found[position] for position in positions]
        return Block(
            [sequence.index for sequence in sequences],
            [sequence.tag for sequence in sequences],
            {key: [sequence.data[key] for sequence in sequences] for key in keys},
        )

    def sequences(self, position: int) -> tuple[int, Iterable[Example]]:
        """Return the usable sequence at this position with the rest of its block, and the position after them."""
        sequence = self.sequence(position)
        return position + 1, (dataclasses.replace(sequence, resume=self.resume(position)),)

    def complete(self, position: int) -> Optional[float]:
        """Return the fraction of the epoch that is done after the sequence at this position, None if unknown."""
        return None if self.num_seqs is None else (position + 1) / self.num_seqs

    def file(self, position: int) -> str:
        """Return the file of the sequence at this position, or ""."""
        return ""

    def place(self, position: int, *, with_file: bool = False) -> str:
        """Return the dataset and tag for messages; also the file if requested and if there is one."""
        file = self.file(position) if with_file else ""
        return place_of(self.dataset, self.tag(position), position, self.epoch, file)

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        for old in [kept for kept in self._kept if kept < position]:
            del self._kept[old]

    def close(self) -> None:
        """Release resources; called once at the end of the epoch, also on early exit."""


_LARGEST_BLOCK = 4096  # sequences to read at once


class Epoch(EpochReader):
    """An epoch of a dataset with random access.

    A sequence whose length can only be known by reading it is kept until ``release``.

    :param dataset: ``datasets.base.Dataset``
    :param epoch: number, from 1
    :param order: corpus indices in the order of reading, or None for an endless dataset in corpus order
    :param keys: the data keys to read
    :param nth: number of earlier occurrences of each in the epoch; None: irrelevant
    """

    def __init__(
        self,
        dataset: Any,
        epoch: int,
        order: Optional[NDArray[Any]],
        keys: list[str],
        nth: Optional[NDArray[Any]] = None,
    ):
        super().__init__(dataset, epoch, keys)
        self._order = None if order is None else narrow(order)
        self._nth = nth
        threads, opts = dataset.read_threads, dataset.opts
        self._ahead = ReadAhead(self._read, self.has, threads) if threads > 1 else None
        self._blocks: Optional[BlockReader] = None
        if order is not None and self._ahead is None and nth is None and dataset.lengths_many(order[:1]) is not None:
            self._blocks = BlockReader(dataset, epoch, order, keys)
        # no option changes or leaves out single sequences
        self._is_plain = opts.window == 1 and not (opts.shuffle_frames_of_nseqs or opts.skip_broken_seqs)

    def only_count(self, keys: Collection[str]) -> None:
        """Deliver some of the keys no more; they are read only if their lengths are not known otherwise."""
        super().only_count(keys)
        if self._blocks is not None:
            self._blocks.keys = self.needed

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None: endless."""
        return None if self._order is None else len(self._order)

    def has(self, position: int) -> bool:
        """Return whether there is a sequence at this position."""
        return self._order is None or position < len(self._order)

    def index(self, position: int) -> int:
        """Return the corpus position of the sequence at this position of the epoch."""
        return position if self._order is None else int(self._order[position])

    def tag(self, position: int) -> str:
        """Return the tag of the sequence at this position."""
        return str(self.dataset.tag(self.index(position)))

    def file(self, position: int) -> str:
        """Return the file of the sequence at this position, or ""."""
        return str(self.dataset.file_of(self.index(position)))

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key; reads the sequence only if the dataset cannot know otherwise."""
        lengths = self._known_lengths(position)
        return self.sequence(position).lengths if lengths is None else lengths

    def jump(self, position: int, resume: Any = None) -> None:
        """Pass over the sequences before a position, none of which needs to be read."""

    def whole_slices(self, keys: Sequence[str], start: int = 0) -> Iterator[Slice]:
        """Yield each usable sequence as a slice from 0 to its number of frames, for these keys."""
        if self._blocks is None or not self._is_plain:
            return super().whole_slices(keys, start)
        return self._blocks.whole_slices(keys, start)

    def block(self, positions: Sequence[int], keys: Sequence[str]) -> Block:
        """Return the sequences at these positions, which ascend."""
        if self._blocks is None or not self._is_plain:
            return super().block(positions, keys)
        indices = self._blocks.indices(positions)
        return Block(indices, self.dataset.tags_many(indices), self._blocks.columns(positions))

    def sequences(self, position: int) -> tuple[int, Iterable[Example]]:
        """Return the usable sequence at this position with the rest of its block, and the position after them."""
        if self._blocks is None or not self._is_plain:
            return super().sequences(position)
        end, columns = self._blocks.block(position)
        indices = self._blocks.indices(slice(position, end))
        tags = self.dataset.tags_many(indices)
        data = map(dict, map(zip, itertools.repeat(tuple(columns)), zip(*columns.values())))
        return end, map(Example, indices, tags, data, range(position, end))

    def _known_lengths(self, position: int) -> Optional[dict[str, int]]:
        if self._blocks is not None:
            return self._blocks.lengths(position)
        lengths: Optional[dict[str, int]] = self.dataset.lengths(self.index(position))
        return lengths

    def sequence(self, position: int) -> Example:
        """Return the sequence at this position.

        :raises DataError: naming dataset and tag, whatever went wrong while reading
        """
        if position not in self._kept:
            size = self.dataset.opts.shuffle_frames_of_nseqs
            if size:
                self._read_shuffled(position // size * size, size)
            else:
                self._kept[position] = self._read_next(position)
        return self._kept[position]

    def close(self) -> None:
        """End the threads that read ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def _read_next(self, position: int) -> Example:
        return self._read(position) if self._ahead is None else self._ahead.get(position)

    def _read_shuffled(self, start: int, size: int) -> None:
        """Read a group of sequences and exchange their frames at random, depending on epoch and group only."""
        group = [self._read_next(position) for position in range(start, start + size) if self.has(position)]
        for sequence in group:
            lengths = {key: sequence.lengths[key] for key in self.needed}
            if len(set(lengths.values())) > 1 or not all(sequence.data[key].ndim for key in self.needed):
                raise DatasetDataError(
                    "%s: shuffle_frames_of_nseqs needs a frame of every key for each frame, but the lengths are %s."
                    % (self.place(sequence.position), lengths)
                )
        counts = [sequence.lengths[self.needed[0]] for sequence in group]
        order = np.random.RandomState([self.dataset.epoch_seed(self.epoch), start]).permutation(sum(counts))
        joined = {key: np.concatenate([seq.data[key] for seq in group])[order] for key in self.needed}
        for sequence, count, end in zip(group, counts, np.cumsum(counts)):
            data = {**sequence.data, **{key: value[end - count : end] for key, value in joined.items()}}
            self._kept[sequence.position] = dataclasses.replace(sequence, data=data)

    def _read(self, position: int) -> Example:
        index = self.index(position)
        read_by_block = None if self._blocks is None else self._blocks.data(position)
        try:
            lengths = self._known_lengths(position)
            keys = self.keys if lengths is None else self.needed
            if read_by_block is not None:
                data = read_by_block
            elif self._nth is not None and self._nth[position]:
                data = self.dataset.read_again(index, self.epoch, keys, int(self._nth[position]))
            else:
                data = self.dataset.read(index, self.epoch, keys)
            data = self.dataset.with_window(data)
            if lengths is not None:
                check_lengths(data, lengths)
        except Exception as exc:
            raise reading_error(self.place(position), exc) from exc
        return Example(index=index, tag=self.tag(position), data=data, position=position)

    def _made_of(self, position: int, data: dict[str, NDArray[Any]]) -> Example:
        """Return the sequence at this position, with the option ``window`` applied to its data."""
        try:
            data = self.dataset.with_window(data)
        except DataError as exc:
            raise DatasetDataError("%s: %s" % (self.place(position), exc)) from None
        return Example(index=self.index(position), tag=self.tag(position), data=data, position=position)


def check_lengths(data: Mapping[str, NDArray[Any]], lengths: Mapping[str, int]) -> None:
    """Compare the data of a sequence with the lengths by key that its dataset has given.

    :raises DataError: it has another number of frames
    """
    for key, value in data.items():
        frames = num_frames(value)
        if frames != lengths.get(key, frames):
            raise DatasetDataError("key %r has %d frames, but its length was given as %d" % (key, frames, lengths[key]))


def reading_error(place: str, error: Exception) -> DataError:
    """Return the error of a sequence that cannot be read.

    :param place: of the sequence
    """
    text = str(error) if isinstance(error, DataError) else "%s: %s" % (error_name(error), error)
    return DatasetDataError("%s: %s" % (place, text))


class BlockReader:
    """Reads data and lengths of the sequences of an epoch by blocks, where a dataset knows many lengths at once.

    The number of sequences of a block is doubled each time, so that the first one does not wait long.

    :param dataset: has ``read_many`` and ``lengths_many``, see ``datasets.base.Dataset``
    :param order: corpus indices in the order of reading
    :param keys: the data keys to read
    """

    def __init__(self, dataset: Any, epoch: int, order: NDArray[Any], keys: Sequence[str]):
        self._dataset = dataset
        self._epoch = epoch
        self._order = order
        self.keys = keys
        self._columns: dict[str, Sequence[NDArray[Any]]] = {}  # data from position _first to before _last
        self._first = self._last = 0
        self._size = 1  # of the next block
        self._lengths: dict[str, list[int]] = {}  # from position _start to before _end
        self._start = self._end = 0

    def data(self, position: int) -> dict[str, NDArray[Any]]:
        """Return the data of a sequence.

        :raises DataError: it cannot be read; names it
        """
        if not self._first <= position < self._last:
            self._read(position)
        return {key: values[position - self._first] for key, values in self._columns.items()}

    def columns(self, positions: Sequence[int]) -> dict[str, list[NDArray[Any]]]:
        """Return the data of several sequences by key; positions ascend."""
        found: dict[str, list[NDArray[Any]]] = {key: [] for key in self.keys}
        done = 0
        while done < len(positions):
            if not self._first <= positions[done] < self._last:
                self._read(positions[done])
            stop = bisect.bisect_left(positions, self._last, done)
            offsets = [position - self._first for position in positions[done:stop]]
            for key, values in found.items():
                column = self._columns[key]
                values.extend([column[offset] for offset in offsets])
            done = stop
        return found

    def block(self, position: int) -> tuple[int, dict[str, Sequence[NDArray[Any]]]]:
        """Return the data of the rest of a block from a position on, and the position after it."""
        if not self._first <= position < self._last:
            self._read(position)
        skipped = position - self._first
        return self._last, {key: values[skipped:] for key, values in self._columns.items()}

    def lengths(self, position: int) -> dict[str, int]:
        """Return frames by key without reading the data."""
        if not self._start <= position < self._end:
            chosen = self._order[position : position + _LARGEST_BLOCK]
            self._start, self._end = position, position + len(chosen)
            self._lengths = self._dataset.lengths_many(chosen)
        return {key: values[position - self._start] for key, values in self._lengths.items()}

    def whole_slices(self, keys: Sequence[str], start: int = 0) -> Iterator[Slice]:
        """Yield each sequence from a position on as a slice from 0 to its number of frames, for these keys."""
        begins = itertools.repeat((0,) * len(keys))
        for first in range(start, len(self._order), _LARGEST_BLOCK):
            lengths = self._dataset.lengths_many(self._order[first : first + _LARGEST_BLOCK])
            yield from zip(itertools.count(first), begins, zip(*(lengths[key] for key in keys)))

    def indices(self, positions: Union[slice, Sequence[int]]) -> list[int]:
        """Return the corpus indices at these positions."""
        indices: list[int] = self._order[positions].tolist()
        return indices

    def _read(self, position: int) -> None:
        """Read the sequence at a position, with the next ones if nothing is wrong with them.

        So an error belongs to this sequence, and is raised when it is reached.
        """
        self._columns, self._first, self._last = {}, position, position
        columns = self._read_block(position) if self._size > 1 else None
        if columns is None:
            try:
                data = self._dataset.read(int(self._order[position]), self._epoch, self.keys)
            except Exception as exc:
                raise reading_error(self._place(position), exc) from exc
            columns, self._size = {key: [data[key]] for key in self.keys}, 1
        count = self._num_right(position, columns)
        self._size = min(2 * self._size, _LARGEST_BLOCK)
        self._columns = columns
        self._last = position + count

    def _place(self, position: int) -> str:
        return place_of(self._dataset, self._dataset.tag(int(self._order[position])), position, self._epoch)

    def _read_block(self, position: int) -> Optional[dict[str, Sequence[NDArray[Any]]]]:
        """Return the data of a block; None if a sequence in it cannot be read, since the error does not name it."""
        chosen = self._order[position : position + self._size]
        try:
            columns: dict[str, Sequence[NDArray[Any]]] = self._dataset.read_many(chosen, self._epoch, self.keys)
        except Exception:
            return None
        return columns

    def _num_right(self, position: int, columns: Mapping[str, Sequence[NDArray[Any]]]) -> int:
        """Return the number of sequences at the start of a block that have the given lengths, at least one."""
        count = len(columns[self.keys[0]])
        lengths = self._dataset.lengths_many(self._order[position : position + count])
        for key, values in columns.items():
            frames = list(map(len, values)) if values[0].ndim else [1] * len(values)
            if frames != lengths[key]:
                wrong = (number for number, pair in enumerate(zip(frames, lengths[key])) if pair[0] != pair[1])
                count = min(count, next(wrong, count))
        if not count:
            data = {key: values[0] for key, values in columns.items()}
            try:
                check_lengths(data, {key: values[0] for key, values in lengths.items()})
            except DataError as exc:
                raise reading_error(self._place(position), exc) from None
        return count
