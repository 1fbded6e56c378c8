"""Reading the next sequences of an epoch together, for datasets where that is quicker than one by one."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, Optional

from numpy.typing import NDArray

_MOST = 4096  # sequences to read at once


class Together:
    """Reads data and lengths of the sequences of an epoch, some sequences at once.

    Their number is doubled each time, so that the first one does not wait long.

    :param dataset: ``datasets.base.Dataset``
    :param order: corpus indices in the order of reading
    :param keys: the data keys to read
    """

    def __init__(self, dataset: Any, epoch: int, order: NDArray[Any], keys: SequenceOf[str]):
        self._dataset = dataset
        self._epoch = epoch
        self._order = order
        self._keys = keys
        self._data: dict[int, dict[str, NDArray[Any]]] = {}  # by position
        self._num_data = 1
        self._lengths: Optional[dict[str, list[int]]] = None  # from position _start on
        self._start = self._end = 0

    def data(self, position: int) -> dict[str, NDArray[Any]]:
        """Return the data of a sequence, which is delivered once."""
        found = self._data.pop(position, None)
        return self._read(position) if found is None else found

    def _read(self, position: int) -> dict[str, NDArray[Any]]:
        """Read a sequence and the next ones.

        An error with several does not tell which one is bad, so this one is then read by itself.
        """
        if self._num_data > 1:
            chosen = self._order[position : position + self._num_data]
            try:
                data, *others = self._dataset.read_together(chosen, self._epoch, self._keys)
            except Exception:
                self._num_data = 0
            else:
                self._data.update(enumerate(others, start=position + 1))
                self._num_data = min(2 * self._num_data, _MOST)
                return dict(data)
        self._num_data += 1
        return dict(self._dataset.read(int(self._order[position]), self._epoch, self._keys))

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

    def release(self, position: int) -> None:
        """Drop what was read of the sequences before this position."""
        if self._data and next(iter(self._data)) < position:
            self._data = {place: data for place, data in self._data.items() if place >= position}
