"""The sequences of an epoch which one of several processes reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

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

    def of_stream(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the same share of a stream, reading ahead no item."""
        counts = [0] * (len(self.done) + 1)
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
