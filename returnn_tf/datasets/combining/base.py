"""Base of datasets that read from other datasets."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DatasetError
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.datasets.core.share import Chosen, Share
from returnn_tf.logging.log import log

# options that only act on the outermost dataset, since the others are read sequence by sequence -> value without effect
_OUTER_ONLY = {"chunking": (None, 0, "0"), "context_window": (None,), "min_chunk_size": (0, None)}
_ORDER_OPTIONS = (
    "seq_ordering",
    "partition_epoch",
    "repeat_epoch",
    "seq_list_filter_file",
    "unique_seq_tags",
    "seq_order_seq_lens_file",
)


def inner_dataset(outer: Dataset, spec: Any, name: str, *, shards: bool = True, **more: Any) -> Dataset:
    """Create a dataset that another one reads from; it inherits the offset of the random seeds and the shard.

    :param spec: as for ``Dataset.from_config``
    :param name: of the inner dataset, for messages
    :param shards: whether it is to read the shard of the outer dataset only, which then must not divide again
    :param more: further options, for those that it does not set
    :raises ConfigError: begins with the outer dataset
    """
    opts = outer.opts
    defaults: dict[str, Any] = {"name": name, **more}
    if shards:
        defaults.update(_num_shards=opts._num_shards, _shard_index=opts._shard_index)
    if opts.random_seed_offset is not None:
        defaults["random_seed_offset"] = opts.random_seed_offset
    try:
        inner = Dataset.from_config(spec, **defaults)
    except ConfigError as exc:
        raise DatasetError("%s: %s" % (outer.described, error_of_inner(name, exc))) from None
    outer.inner_datasets.add(inner)
    if inner.opts.skip_broken_seqs:
        opts.skip_broken_seqs = True  # sequences derived from a broken one are left out as well
    for option, idle in _OUTER_ONLY.items():
        if getattr(inner.opts, option) not in idle:
            text = "%s: inner dataset %r: option %r has no effect there; it acts on the outermost dataset"
            log.warn(text % (outer.described, name, option))
    return inner


def error_of_inner(name: str, error: Exception) -> str:
    """Return the text of an error of an inner dataset, which begins with its name once.

    :param name: of the inner dataset
    """
    text = str(error)
    return "inner %s" % text if text.startswith("dataset %r" % name) else "inner dataset %r: %s" % (name, text)


def read_inner(dataset: Dataset, index: int, epoch: int, keys: Sequence[str], nth: int = 0) -> dict[str, NDArray[Any]]:
    """Return the data of a sequence with the dataset's own option ``window`` applied.

    :param index: position in its corpus
    :param nth: number of its earlier occurrences in the epoch
    """
    data = dataset.read_again(index, epoch, keys, nth) if nth else dataset.read(index, epoch, keys)
    return dataset.with_window(data)


def refuse_own_order(dataset: Dataset) -> None:
    """Refuse options on the order, for datasets whose order is that of the inner ones.

    :raises ConfigError: names the option
    """
    for option in _ORDER_OPTIONS:
        value = getattr(dataset.opts, option)
        if value not in ("default", 1, None, False):
            raise DatasetError(
                "%s: option %r is %r, but the order is that of the inner datasets; set it there"
                % (dataset.described, option, value)
            )


def takes_tags(dataset: Dataset) -> bool:
    """Return whether sequences of a dataset can be chosen by their tags."""
    return not dataset.is_stream or "seq_list" in taken_by(dataset)


def taken_by(dataset: Dataset) -> frozenset[str]:
    """Return the ways of choosing sequences of a stream, see `StreamDataset.takes`."""
    taken: frozenset[str] = getattr(dataset, "takes", frozenset())
    return taken


def difference(first: Mapping[str, DataSpec], other: Mapping[str, DataSpec]) -> str:
    """Return the first difference between the formats of two datasets, to be completed by a name; "" if they agree.

    They agree if each key of the first one has the same dim and axes in the other.
    """
    for key, spec in first.items():
        got = other.get(key)
        if got is None or (got.dim, got.ndim) != (spec.dim, spec.ndim):
            text = "no data" if got is None else "dim %d and %d axes" % (got.dim, got.ndim)
            return "key %r has %s, but dim %d and %d axes" % (key, text, spec.dim, spec.ndim)
    return ""


class CombiningDataset(Dataset):
    """A dataset that reads from others, the inner datasets.

    Inner datasets inherit the offset of the random seeds and the shard; order, parts and chunks are their own.
    A subclass implements ``open_epoch`` by the inner epochs, so that streams can be among them.
    """

    #: how the sequences of an epoch can be chosen if it is a stream, see `StreamDataset`
    takes: frozenset[str] = frozenset(("seq_list", "seq_order"))

    def setup(self) -> None:
        """Check the options that every combining dataset has."""
        if self.opts.shuffle_frames_of_nseqs:
            raise DatasetError(
                "%s: shuffle_frames_of_nseqs acts on the inner datasets; move it into them" % self._owner()
            )

    def wrap(self, spec: Any) -> None:
        """Create ``inner``, the only inner dataset, which makes the order."""
        refuse_own_order(self)
        self.inner: Any = inner_dataset(self, spec, "%s_dataset" % self.name)
        self.is_stream = self.inner.is_stream
        self.takes = taken_by(self.inner) if self.is_stream else self.takes

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format by data key, before ``window``."""
        raise NotImplementedError("%s.make_specs" % type(self).__name__)

    @functools.cached_property
    def data_specs(self) -> dict[str, DataSpec]:  # type: ignore[override]
        """Return the format by data key; where an inner dataset is a stream, this may read its first sequence."""
        return self.windowed(self.make_specs())

    def check_format(self) -> None:
        """Report mistakes in the format when the dataset is created; a stream is not read for that."""
        if not self.is_stream:
            assert self.data_specs is not None

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read the data of one sequence."""
        return self.read_again(index, epoch, keys, 0)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a repeated sequence of an epoch."""
        reader = self.open_epoch(epoch, list(keys), Chosen.single(index, nth))
        try:
            return reader.sequence(0).data
        finally:
            reader.close()


class FormatOfInner(Dataset):
    """A dataset whose data keys are those of an inner one."""

    inner: Dataset

    @property
    def format_source(self) -> Dataset:
        """Return the dataset whose format this one has."""
        return self.inner

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key, as the inner dataset declares them."""
        return self.format_source.num_outputs

    @property
    def target_list(self) -> list[str]:
        """Return the targets of the inner dataset."""
        return self.format_source.target_list


class CorpusOfInner(Dataset):
    """A dataset whose sequences are those of the dataset ``inner``."""

    inner: Dataset

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences of the inner dataset."""
        return self.inner.num_seqs

    @property
    def endless(self) -> bool:
        """Return whether the inner dataset is endless."""
        return self.inner.endless

    def tag(self, index: int) -> str:
        """Return the tag in the inner dataset."""
        return self.inner.tag(index)

    def file_of(self, index: int) -> str:
        """Return the file in the inner dataset."""
        return self.inner.file_of(index)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return the order of the inner dataset; None: endless, or a stream."""
        return None if self.is_stream else self.inner.seq_order(epoch)


@dataclasses.dataclass(frozen=True)
class Link:
    """One part of a chain.

    :param reader: the epoch of an inner dataset
    :param offset: added to its corpus indices
    """

    reader: EpochReader
    offset: int = 0


class _Place(NamedTuple):
    """A place in a chain: the number of the link, the position in it, and that in the epoch of all processes."""

    link: int
    local: int
    overall: int


class ChainedEpoch(EpochReader):
    """The sequences of several inner epochs one after the other, or this process's share of them.

    :param dataset: the outer dataset
    :param links: the inner epochs, which it closes
    """

    def __init__(self, dataset: Any, epoch: int, keys: list[str], links: Sequence[Link], share: Optional[Share] = None):
        super().__init__(dataset, epoch, keys)
        self._links = links
        self._share = share
        self._begin = _Place(0, 0, 0)
        self._walk = self._shared_places()
        self._places: dict[int, _Place] = {}
        self._num_found = 0
        self._is_counted = self._counts() is not None  # before anything is read
        self._first = 0  # link that is not released
        self._ended = False

    def only_count(self, keys: Collection[str]) -> None:
        """Deliver some of the keys no more, nor do the inner epochs."""
        super().only_count(keys)
        for link in self._links:
            link.reader.only_count(keys)

    def _all_places(self, start: _Place) -> Iterator[_Place]:
        first, local, count = start
        for number in range(first, len(self._links)):
            while self._links[number].reader.has(local):
                yield _Place(number, local, count)
                local, count = local + 1, count + 1
            local = 0

    def _shared_places(self) -> Iterator[_Place]:
        """Return the places of this process from the begin on."""
        places = self._all_places(self._begin)
        return places if self._share is None else self._share.of_stream(places, self._begin.overall)

    def _counts(self) -> Optional[list[int]]:
        """Return the numbers of sequences of the inner epochs, of passed ones their sum; None if one is not known."""
        number, local, count = self._begin
        passed = [count - local, *([0] * (number - 1))] if number else []
        counts = [link.reader.num_seqs for link in self._links[number:]]
        return None if None in counts else [*passed, *(count for count in counts if count is not None)]

    def resume(self, position: int) -> Any:
        """Return the place behind this position, if positions of the inner epochs alone do not give it."""
        if position not in self._places:
            return None
        number, local, count = self._places[position]
        inner = self._links[number].reader.resume(local)
        return None if inner is None and self._is_counted else [number, local + 1, count + 1, inner]

    def jump(self, position: int, resume: Any = None) -> None:
        """Pass over the sequences before a position; those of an inner stream may have to be read."""
        inner = None
        if resume is not None:
            *place, inner = resume
            begin = _Place(*place)
        else:
            counts = self._counts()
            if counts is None:
                super().jump(position)
                return
            begin = self._place_of(position, counts)
        if begin.local:
            self._links[begin.link].reader.jump(begin.local, inner)
        self._begin, self._num_found = begin, position
        self._walk = self._shared_places()

    def _place_of(self, position: int, counts: Sequence[int]) -> _Place:
        """Return the place from which on a position of this process is the next one.

        :param counts: sequences of the inner epochs
        """
        ends = np.cumsum(counts)
        count = min(position, int(ends[-1]))
        if self._share is not None:
            own = self._share.of_order(np.arange(ends[-1]))
            count = int(own[position]) if position < len(own) else int(ends[-1])
        number = min(int(np.searchsorted(ends, count, side="right")), len(counts) - 1)
        return _Place(number, count - int(ends[number]) + counts[number], count)

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None as long as that of an inner one is not known."""
        if self._ended:
            return self._num_found
        counts = self._counts()
        if counts is None:
            return None
        total = sum(counts)
        return total if self._share is None else len(self._share.of_order(np.arange(total)))

    def has(self, position: int) -> bool:
        """Return whether there is a sequence at this position; streams are read up to there."""
        while position >= self._num_found and not self._ended:
            place = next(self._walk, None)
            if place is None:
                self._ended = True
            else:
                self._places[self._num_found] = place
                self._num_found += 1
        return position < self._num_found

    def _place(self, position: int) -> tuple[EpochReader, int, int]:
        if not self.has(position):
            raise IndexError("%r has no position %d in epoch %d" % (self.dataset, position, self.epoch))
        number, local, _ = self._places[position]
        link = self._links[number]
        return link.reader, local, link.offset

    def index(self, position: int) -> int:
        """Return the corpus position of the sequence at this position of the epoch."""
        reader, local, offset = self._place(position)
        return reader.index(local) + offset

    def tag(self, position: int) -> str:
        """Return the tag of the sequence at this position."""
        reader, local, _ = self._place(position)
        return reader.tag(local)

    def file(self, position: int) -> str:
        """Return the file of the sequence at this position, or ""."""
        reader, local, _ = self._place(position)
        return reader.file(local)

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key."""
        reader, local, _ = self._place(position)
        return reader.lengths(local)

    def sequence(self, position: int) -> Example:
        """Return the sequence at this position."""
        if position not in self._kept:
            reader, local, offset = self._place(position)
            inner = reader.sequence(local)
            data = self.dataset.with_window(inner.data)
            self._kept[position] = dataclasses.replace(
                inner, data=data, index=inner.index + offset, position=position, complete=None
            )
        return self._kept[position]

    def complete(self, position: int) -> Optional[float]:
        """Return the fraction of the epoch that is done after the sequence at this position, None if unknown."""
        if len(self._links) > 1 or self._share is not None:
            return super().complete(position)
        reader, local, _ = self._place(position)
        return reader.complete(local)

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        super().release(position)
        for old in [old for old in self._places if old < position - 1]:
            del self._places[old]
        if position - 1 in self._places:
            last = self._places[position - 1]
            for link in self._links[self._first : last.link]:
                link.reader.release(sys.maxsize)
            self._first = last.link
            self._links[last.link].reader.release(last.local + 1)

    def close(self) -> None:
        """Close the inner epochs."""
        self._ended = True
        for link in self._links:
            link.reader.close()
