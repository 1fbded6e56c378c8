"""Streams: datasets that yield the sequences of an epoch one after the other, of unknown number and unknown tags."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DataError, DatasetDataError, DatasetError, shown
from returnn_tf.config.user_code import error_in_config
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example, spec_of_array
from returnn_tf.datasets.core.epoch import EpochReader, place_of
from returnn_tf.datasets.core.safe_files import read_seq_tags
from returnn_tf.datasets.core.share import ALL, Chosen, Share


class StreamDataset(Dataset):
    """A dataset that yields an epoch's sequences in order; their number and tags show only while reading.

    A subclass implements `stream`, and `make_specs` if it knows the format before the first sequence. An epoch is
    resumed by what the sequences have as ``resume``, else by reading the stream again up to the position, so it has to
    depend on nothing but the epoch.

    A dataset whose options decide whether there is random access sets ``self.is_stream`` in ``setup``, and implements
    both `stream` and what ``Dataset`` asks for.
    """

    is_stream = True
    takes_default_order = False
    #: what `stream` accepts: seq_list, seq_order, and share, by which it then divides the sequences itself
    takes: frozenset[str] = frozenset()
    #: whether `stream` applies seq_ordering, partition_epoch and repeat_epoch; otherwise only 'default' is allowed.
    #: Set ``takes_default_order`` as well if the settings of the config for the order are meant for it.
    makes_order = False
    #: whether `stream` yields only the sequences of its shard, see the options _num_shards and _shard_index
    makes_shards = False

    def __init__(self, **given: Any):
        self._specs: Optional[dict[str, DataSpec]] = None
        #: sequences of the last epoch that was read to its end, without shards
        self.num_seqs_of_last_epoch: Optional[int] = None
        super().__init__(**given)
        self._check_stream_options()

    # ---- implemented by subclasses

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        """Yield the sequences of an epoch; a generator, closed at the end, when the epoch is left, and on errors.

        :param epoch: from 1
        :param how: what ``takes`` names, if it is asked for; see `open_epoch`. If the sequences have ``resume``, also
            ``resume``, that of a sequence of an earlier stream, to yield those behind it
        """
        raise NotImplementedError("%s.stream" % type(self).__name__)

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format by data key, before ``window``; by default that of the first sequence of epoch 1."""
        first = self.first_sequence()
        return {key: spec_of_array(value) for key, value in first.data.items()}

    def expected_num_seqs(self, epoch: int) -> Optional[int]:
        """Return the number of sequences of an epoch without shards, if known once its first one is read."""
        return self.num_seqs

    @property
    def endless(self) -> bool:
        """Return whether an epoch never ends."""
        return False if self.is_stream else super().endless

    # ---- the interface of datasets

    @property
    def num_seqs(self) -> Optional[int]:
        """Return None: unknown before the end of an epoch."""
        return None

    def tag(self, index: int) -> str:
        """Refuse; only sequences that were read have a known tag."""
        raise DatasetError("%s is a stream: the tags of its sequences are known only while it is read" % self._owner())

    @property
    def data_specs(self) -> dict[str, DataSpec]:  # type: ignore[override]
        """Return the format by data key; may read the first sequence."""
        if self._specs is None:
            self._specs = self.windowed(self.make_specs())
        return self._specs

    def first_sequence(self) -> Example:
        """Return the first sequence of epoch 1; DataError for an empty stream."""
        with contextlib.closing(self.sequences_of_stream(1)) as sequences:
            first = next(sequences, None)
        if first is None:
            raise DatasetDataError("%s is empty: its stream ends without any sequence" % self._owner())
        return first

    def sequences_of_stream(self, epoch: int, **how: Any) -> Generator[Example, None, None]:
        """Yield the sequences of `stream`, closing it at the end; errors name the place in the stream.

        :raises DataError: reading failed, or what is yielded is no sequence
        """
        items = iter(self.stream(epoch, **how))
        last = None
        with contextlib.closing(_Closable(items)):
            while True:
                try:
                    item = next(items, None)
                except ConfigError:
                    raise
                except Exception as exc:
                    text = str(exc) if isinstance(exc, DataError) else error_in_config(exc)
                    text = text or "%s: %s" % (type(exc).__name__, exc)
                    raise DatasetDataError("%s: %s" % (self._where(epoch, last), text)) from exc
                if item is None:
                    return
                if not isinstance(item, Example):
                    raise DatasetDataError("%s: %s is no sequence" % (self._where(epoch, last), shown(item)))
                last = item
                yield item

    def _where(self, epoch: int, last: Optional[Example]) -> str:
        after = "at the start" if last is None else "after sequence %r" % last.tag
        return "dataset %r, %s of epoch %d" % (self.name, after, epoch)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return None for a stream: the order shows only while reading."""
        return None if self.is_stream else super().seq_order(epoch)

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of an epoch by position, to be closed."""
        if not self.is_stream:
            return super().open_epoch(epoch, keys, chosen)
        unknown = {name: None for name in ("by_itself", "nth") if name not in self.takes}  # they change no sequence
        chosen = dataclasses.replace(chosen, **unknown)
        for name in sorted(chosen.of_all_processes().given):
            if name not in self.takes:
                raise DatasetError("%s is a stream, so its sequences can't be chosen by %s" % (self._owner(), name))
        return StreamedEpoch(self, epoch, keys, chosen)

    def _check_stream_options(self) -> None:
        opts = self.opts
        if not self.is_stream:
            return
        if opts.shuffle_frames_of_nseqs:
            raise DatasetError(
                "%s is a stream: shuffle_frames_of_nseqs needs a corpus with random access" % self._owner()
            )
        if self._given.get("skip_broken_seqs"):
            raise DatasetError(
                "%s is a stream, which cannot go on after an error: skip_broken_seqs is for datasets with random access"
                % self._owner()
            )
        if self.makes_order:
            return
        kind = None if self.epoch_order.fixed is None else self.epoch_order.fixed.kind
        if kind != "default":
            raise DatasetError(
                "%s is a stream, so it has the order 'default' only, not seq_ordering %s"
                % (self._owner(), shown(opts.seq_ordering))
            )
        for name in ("partition_epoch", "repeat_epoch"):
            if getattr(opts, name) != 1:
                raise DatasetError(
                    "%s is a stream, so it can't have %s=%d" % (self._owner(), name, getattr(opts, name))
                )


class StreamedEpoch(EpochReader):
    """An epoch of a stream: reads only as far as requested, and keeps sequences until `release`.

    :param chosen: see ``Dataset.open_epoch``
    """

    def __init__(self, dataset: StreamDataset, epoch: int, keys: list[str], chosen: Chosen = ALL):
        super().__init__(dataset, epoch, keys)
        self._is_own_order = not chosen.is_explicit
        self._share = None if "share" in dataset.takes else chosen.share
        self._how = (chosen if "share" in dataset.takes else chosen.of_all_processes()).given
        self._sequences: Optional[Generator[Example, None, None]] = None
        self._chosen: Iterator[Example] = iter(())
        self._num_read = 0  # of this epoch's part
        self._num_streamed = 0  # of the whole stream
        self._ended = False
        self._num_offered = 0  # of all processes
        self._resumes: dict[int, list[Any]] = {}  # by position, see `resume`

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None until its end was seen."""
        return self._num_read if self._ended else None

    def has(self, position: int) -> bool:
        """Return whether there is a sequence at this position, reading up to there."""
        while position >= self._num_read and not self._ended:
            self._read_next()
        return position < self._num_read

    def index(self, position: int) -> int:
        """Return the position in the whole stream."""
        return self.sequence(position).index

    def tag(self, position: int) -> str:
        """Return the tag of the sequence at this position."""
        return self.sequence(position).tag

    def sequence(self, position: int) -> Example:
        """Return the sequence at this position."""
        if not self.has(position):
            raise IndexError("%r has no position %d in epoch %d" % (self.dataset, position, self.epoch))
        return self._kept[position]

    def complete(self, position: int) -> Optional[float]:
        """Return the fraction of the epoch that is done after the sequence at this position, None if unknown."""
        return self.sequence(position).complete

    def resume(self, position: int) -> Any:
        """Return how many sequences of the stream and of all processes end with this one, and its ``resume``."""
        return self._resumes.get(position)

    def jump(self, position: int, resume: Any = None) -> None:
        """Pass over the sequences before a position, which are read if the stream can't go on there."""
        if resume is None:
            super().jump(position)
            return
        self._num_read = position
        self._num_streamed, self._num_offered, self._how["resume"] = resume

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        super().release(position)
        for old in [old for old in self._resumes if old < position - 1]:
            del self._resumes[old]

    def close(self) -> None:
        """Close the stream."""
        self._ended = True
        if self._sequences is not None:
            self._sequences.close()

    def _read_next(self) -> None:
        if self._sequences is None:
            self._sequences = self.dataset.sequences_of_stream(self.epoch, **self._how)
            self._chosen = self._choose(self._sequences)
        sequence = next(self._chosen, None)
        if sequence is None:
            self._ended = True
            if self._is_own_order and "share" not in self._how:
                self.dataset.num_seqs_of_last_epoch = self._num_streamed
            return
        position = self._num_read
        if sequence.resume is not None and not (self._is_own_order and self.dataset.opts.unique_seq_tags):
            self._resumes[position] = [self._num_streamed, self._num_offered, sequence.resume]
        self._kept[position] = dataclasses.replace(
            sequence, data=self._data(sequence, position), position=position, complete=self._fraction(sequence)
        )
        self._num_read += 1

    def _choose(self, sequences: Iterable[Example]) -> Iterator[Example]:
        """Yield the sequences of this process, in the order of steps of `EpochOrder.part`."""
        opts = self.dataset.opts
        streamed, offered = self._num_streamed, self._num_offered
        chosen = self._counted(sequences)
        if self._is_own_order:
            if opts.unique_seq_tags:
                chosen = _unique(chosen)
            if opts._num_shards > 1 and not self.dataset.makes_shards:
                chosen = Share(rank=opts._shard_index, size=opts._num_shards).of_stream(chosen, streamed)
            if opts.seq_list_filter_file:
                with self.dataset._wanted_by("seq_list_filter_file"):
                    tags = set(read_seq_tags(opts.seq_list_filter_file))
                chosen = (sequence for sequence in chosen if sequence.tag in tags)
        chosen = self._offered(chosen)
        return chosen if self._share is None else self._share.of_stream(chosen, offered)

    def _offered(self, sequences: Iterable[Example]) -> Iterator[Example]:
        for sequence in sequences:
            self._num_offered += 1
            yield sequence

    def _counted(self, sequences: Iterable[Example]) -> Iterator[Example]:
        for sequence in sequences:
            self._num_streamed += 1
            yield sequence

    def _data(self, sequence: Example, position: int) -> dict[str, NDArray[Any]]:
        missing = [key for key in self.needed if key not in sequence.data]
        there = [key for key in self.keys if key in sequence.data]
        try:
            if missing:
                raise DatasetDataError("it has no key %r, only %s" % (missing[0], ", ".join(sorted(sequence.data))))
            data: dict[str, NDArray[Any]] = self.dataset.with_window({key: sequence.data[key] for key in there})
            return data
        except DataError as exc:
            place = place_of(self.dataset, sequence.tag, position, self.epoch)
            raise DatasetDataError("%s: %s" % (place, exc)) from None

    def _fraction(self, sequence: Example) -> Optional[float]:
        """Return the progress reported by the stream, else an estimate from the number of sequences."""
        if sequence.complete is not None:
            return sequence.complete
        dataset = self.dataset
        total = (
            dataset.expected_num_seqs(self.epoch) or dataset.num_seqs_of_last_epoch or dataset.opts.estimated_num_seqs
        )
        return min(self._num_streamed / total, 1.0) if total else None


def _unique(sequences: Iterable[Example]) -> Iterator[Example]:
    seen: set[str] = set()
    for sequence in sequences:
        if sequence.tag not in seen:
            seen.add(sequence.tag)
            yield sequence


class _Closable:
    """Closes an iterator that may lack a method for it, as generators have one."""

    def __init__(self, items: Any):
        self._items = items

    def close(self) -> None:
        """Close the iterator."""
        getattr(self._items, "close", lambda: None)()
