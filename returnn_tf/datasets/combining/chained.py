"""Epochs of several datasets, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.datasets.core.share import Share


@dataclasses.dataclass(frozen=True)
class Link:
    """One part of a chain.

    :param reader: the epoch of an inner dataset
    :param offset: added to its corpus indices
    """

    reader: EpochReader
    offset: int = 0


class ChainedEpoch(EpochReader):
    """The sequences of several inner epochs in a row, or those of them that this process reads.

    :param dataset: the outer dataset
    :param links: the inner epochs, which it closes
    """

    def __init__(self, dataset: Any, epoch: int, keys: list[str], links: Sequence[Link], share: Optional[Share] = None):
        super().__init__(dataset, epoch, keys)
        self._links = links
        self._share = share
        self._walk: Iterator[tuple[Link, int]] = self._all_places()
        if share is not None:
            self._walk = share.of_stream(self._walk)
        self._places: dict[int, tuple[Link, int]] = {}
        self._num_found = 0
        self._ended = False

    def _all_places(self) -> Iterator[tuple[Link, int]]:
        for link in self._links:
            position = 0
            while link.reader.has(position):
                yield link, position
                position += 1

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None as long as that of an inner one is not known."""
        if self._ended:
            return self._num_found
        counts = [link.reader.num_seqs for link in self._links]
        if None in counts:
            return None
        total = sum(count for count in counts if count is not None)
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
        link, local = self._places[position]
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
        """Return the file of the sequence at this position; empty if there is none."""
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
        for old in [old for old in self._places if old < position]:
            link, local = self._places.pop(old)
            link.reader.release(local + 1)

    def close(self) -> None:
        """Close the inner epochs."""
        self._ended = True
        for link in self._links:
            link.reader.close()
