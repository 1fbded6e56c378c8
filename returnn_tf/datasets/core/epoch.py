"""One pass over a dataset: maps positions in the order of the epoch to sequences."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.core.data_spec import Example, num_frames
from returnn_tf.datasets.core.epoch_reader import EpochReader
from returnn_tf.datasets.core.read_ahead import ReadAhead
from returnn_tf.datasets.core.together import Together


class Epoch(EpochReader):
    """An epoch of a dataset with random access.

    A sequence whose length can only be known by reading it is kept until ``release``.

    :param dataset: ``datasets.base.Dataset``
    :param epoch: number, from 1
    :param order: corpus indices in the order of reading, or None for an endless dataset in corpus order
    :param keys: the data keys to read
    :param nth: how many times each had occurred in the epoch before; None: it does not matter
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
        if order is not None and order.max(initial=0) < 1 << 31:
            order = order.astype(np.int32)  # half of the memory, of which a corpus of millions needs much
        self._order = order
        self._nth = nth
        threads = dataset.read_threads
        self._ahead = ReadAhead(self._read, self.has, threads) if threads > 1 else None
        is_single = self._ahead is not None or nth is not None
        self._together = None if order is None or is_single else Together(dataset, epoch, order, keys)

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
        """Return the file of the sequence at this position; empty if there is none."""
        return str(self.dataset.file_of(self.index(position)))

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key; reads the sequence only if the dataset cannot know otherwise."""
        lengths = self._known_lengths(position)
        return self.sequence(position).lengths if lengths is None else lengths

    @property
    def together(self) -> Optional[Together]:
        """Return what reads several sequences at once, if that is possible and their lengths are known."""
        return self._together if self._together is not None and self._together.knows_lengths else None

    def _known_lengths(self, position: int) -> Optional[dict[str, int]]:
        if self._together is not None:
            return self._together.lengths(position)
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
            lengths = set(sequence.lengths.values())
            if len(lengths) > 1 or not all(value.ndim for value in sequence.data.values()):
                raise DataError(
                    "%s: shuffle_frames_of_nseqs needs a frame of every key for each frame, but the lengths are %s."
                    % (self.place(sequence.position), sequence.lengths)
                )
        counts = [next(iter(sequence.lengths.values()), 0) for sequence in group]
        order = np.random.RandomState([self.dataset.epoch_seed(self.epoch), start]).permutation(sum(counts))
        joined = {key: np.concatenate([seq.data[key] for seq in group])[order] for key in self.keys}
        for sequence, count, end in zip(group, counts, np.cumsum(counts)):
            data = {key: value[end - count : end] for key, value in joined.items()}
            self._kept[sequence.position] = dataclasses.replace(sequence, data=data)

    def _read(self, position: int) -> Example:
        index = self.index(position)
        try:
            if self._nth is not None and self._nth[position]:
                data = self.dataset.read_again(index, self.epoch, self.keys, int(self._nth[position]))
            elif self._together is None:
                data = self.dataset.read(index, self.epoch, self.keys)
            else:
                data = self._together.data(position)
            data = self.dataset.with_window(data)
            self._check_lengths(position, data)
        except Exception as exc:
            text = str(exc) if isinstance(exc, DataError) else "%s: %s" % (type(exc).__name__, exc)
            raise DataError("%s: %s" % (self.place(position), text)) from exc
        return Example(index=index, tag=self.tag(position), data=data, position=position)

    def _made_of(self, position: int, data: dict[str, NDArray[Any]]) -> Example:
        """Return the sequence at this position, with the option ``window`` applied to its data."""
        try:
            data = self.dataset.with_window(data)
        except DataError as exc:
            raise DataError("%s: %s" % (self.place(position), exc)) from None
        return Example(index=self.index(position), tag=self.tag(position), data=data, position=position)

    def _check_lengths(self, position: int, data: dict[str, NDArray[Any]]) -> None:
        lengths = self._known_lengths(position)
        if lengths is None:
            return
        for key, value in data.items():
            frames = num_frames(value)
            if frames != lengths.get(key, frames):
                raise DataError("key %r has %d frames, but its length was given as %d" % (key, frames, lengths[key]))
