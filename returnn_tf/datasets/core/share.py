"""The selection of sequences of an epoch: by a list, and the share of one of several processes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Share:
    """Every ``size``-th sequence, starting with number ``rank``, of those that were not done before.

    :param rank: of the process, from 0
    :param size: number of processes
    :param done: for each earlier number of processes, how many sequences of its share each of them did
    """

    rank: int = 0
    size: int = 1
    done: tuple[tuple[int, ...], ...] = ()

    def of_order(self, order: NDArray[Any]) -> NDArray[Any]:
        """Return the share of an order: array [sequences]."""
        for done in self.done:
            index = np.arange(len(order))
            order = order[index // len(done) >= np.asarray(done)[index % len(done)]]
        return order[self.rank :: self.size]

    def of_share(self, other: Share, start: int) -> Share:
        """Return this share of what another one has left after ``start`` sequences."""
        others = tuple(start if rank == other.rank else sys.maxsize for rank in range(other.size))
        return dataclasses.replace(self, done=(*other.done, others))

    def of_stream(self, items: Iterable[_T], start: int = 0) -> Iterator[_T]:
        """Yield the same share of a stream, reading ahead no item.

        :param start: number of items before the first of these
        """
        before = np.arange(start)
        counts = [len(Share(done=self.done[:stage]).of_order(before)) for stage in range(len(self.done) + 1)]
        for item in items:
            for stage, done in enumerate(self.done):
                row, column = divmod(counts[stage], len(done))
                counts[stage] += 1
                if row < done[column]:
                    break
            else:
                counts[-1] += 1
                if (counts[-1] - 1) % self.size == self.rank:
                    yield item


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What is read of an epoch; a list of tags and one of indices exclude each other.

    :param seq_list: tags to read instead of the epoch's own order
    :param seq_order: corpus indices to read instead of it
    :param share: the part of all these that this process reads; None: all
    :param nth: earlier occurrences of each of the listed ones in the epoch, if more than the list shows
    :param by_itself: True: random numbers depend on the sequence and its count in the epoch only, none run through it
    """

    seq_list: Optional[Sequence[str]] = None
    seq_order: Union[None, Sequence[int], NDArray[Any]] = None
    share: Optional[Share] = None
    by_itself: Optional[bool] = None
    nth: Optional[NDArray[Any]] = None

    @property
    def is_explicit(self) -> bool:
        """Return whether there is a list instead of the epoch's own order."""
        return self.seq_list is not None or self.seq_order is not None

    @property
    def given(self) -> dict[str, Any]:
        """Return those of the fields that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def of_all_processes(self) -> Chosen:
        """Return the same without a share."""
        return dataclasses.replace(self, share=None)

    @classmethod
    def single(cls, index: int, nth: int = 0) -> Chosen:
        """Return the choice of one sequence alone.

        :param nth: number of its earlier occurrences in the epoch
        """
        return cls(seq_order=[index] * (nth + 1), share=Share(done=((nth,),)) if nth else None, by_itself=True)


#: All sequences of an epoch in its own order.
ALL = Chosen()
