"""Reading the next sequences of an epoch together, for datasets where that is quicker than one by one."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

from numpy.typing import NDArray

_MOST = 4096  # sequences to read at once


class Together:
    """Reads data and lengths of the sequences of an epoch, some sequences at once.

    Their number is doubled each time, so that the first one does not wait long.

    :param dataset: ``datasets.base.Dataset``
    :param order: corpus indices in the order of reading
    :param keys: the data keys to read
    """

    def __init__(self, dataset: Any, epoch: int, order: NDArray[Any], keys: Sequence[str]):
        self._dataset = dataset
        self._epoch = epoch
        self._order = order
        self._keys = keys
        self._columns: dict[str, Sequence[NDArray[Any]]] = {}  # data from position _first to before _last
        self._first = self._last = 0
        self._num_data = 1
        self._lengths: Optional[dict[str, list[int]]] = None  # from position _start to before _end
        self._start = self._end = 0

    def data(self, position: int) -> dict[str, NDArray[Any]]:
        """Return the data of a sequence."""
        if not self._first <= position < self._last:
            self._read(position)
        return {key: values[position - self._first] for key, values in self._columns.items()}

    def data_of(self, positions: Sequence[int]) -> dict[str, list[NDArray[Any]]]:
        """Return the data of several sequences by key; positions ascend."""
        found: dict[str, list[NDArray[Any]]] = {key: [] for key in self._keys}
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
        """Return the data of the sequences from a position on that are read together, and the position after them."""
        if not self._first <= position < self._last:
            self._read(position)
        skipped = position - self._first
        return self._last, {key: values[skipped:] for key, values in self._columns.items()}

    def lengths_of(self, start: int, end: int) -> Optional[dict[str, list[int]]]:
        """Return the lengths of the sequences from a position to before another one by key, or None."""
        lengths: Optional[dict[str, list[int]]] = self._dataset.lengths_together(self._order[start:end])
        return lengths

    def _read(self, position: int) -> None:
        """Read a sequence and the next ones.

        An error with several does not tell which one is bad, so this one is then read by itself.
        """
        self._columns, self._first, self._last = {}, position, position
        if self._num_data > 1:
            chosen = self._order[position : position + self._num_data]
            try:
                self._columns = self._dataset.read_together(chosen, self._epoch, self._keys)
            except Exception:
                self._num_data = 0
            else:
                self._num_data = min(2 * self._num_data, _MOST)
        if not self._columns:
            self._num_data += 1
            data = self._dataset.read(int(self._order[position]), self._epoch, self._keys)
            self._columns = {key: [data[key]] for key in self._keys}
        self._last = position + len(self._columns[self._keys[0]])

    def lengths(self, position: int) -> Optional[dict[str, int]]:
        """Return frames by key without reading the data, or None if that is impossible."""
        if not self._start <= position < self._end:
            chosen = self._order[position : position + _MOST]
            self._start, self._end = position, position + len(chosen)
            self._lengths = self._dataset.lengths_together(chosen)
        if self._lengths is None:
            found: Optional[dict[str, int]] = self._dataset.lengths(int(self._order[position]))
            return found
        offset = position - self._start
        return {key: values[offset] for key, values in self._lengths.items()}

    def indices(self, positions: Union[slice, Sequence[int]]) -> list[int]:
        """Return the corpus indices at these positions."""
        indices: list[int] = self._order[positions].tolist()
        return indices

    @property
    def knows_lengths(self) -> bool:
        """Return whether the lengths of many sequences can be had at once."""
        return self._dataset.lengths_together(self._order[:1]) is not None

    def walk_lengths(self, keys: Sequence[str]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each position with the lengths of these keys; only if it knows them."""
        for start in range(0, len(self._order), _MOST):
            lengths = self._dataset.lengths_together(self._order[start : start + _MOST])
            yield from enumerate(zip(*(lengths[key] for key in keys)), start=start)
