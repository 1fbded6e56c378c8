"""Reading many sequences of an HDF5 array at once.

Asking the HDF5 library for rows takes longer than copying a short sequence. So neighbours are read together, and rows
of an array that is contiguous in the file are read from there directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import h5py
import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.hdf.chunks import PlainChunks, fill, is_plain

_LARGEST_RUN = 8 << 20  # bytes to read at once
_SMALLEST_GAP = 1 << 16  # bytes that are read in vain rather than asking twice
_COPIED = 4  # sequences are copied out of a run that is this many times larger than they are, to free the rest


class RowReader:
    """Reads rows of an array.

    :param dataset: [rows, ...]
    :param fd: the same file, open for reading
    """

    def __init__(self, dataset: h5py.Dataset, fd: int):
        self._dataset = dataset
        self._fd = fd
        self._tail: tuple[int, ...] = tuple(dataset.shape[1:])
        self._dtype: np.dtype[Any] = dataset.dtype
        self.row_bytes = max(self._dtype.itemsize * int(np.prod(self._tail, dtype=np.int64)), 1)
        chunk_bytes = (dataset.chunks or (0,))[0] * self.row_bytes
        self._gap = max(_SMALLEST_GAP, min(chunk_bytes, _LARGEST_RUN // 4)) // self.row_bytes
        self._offset: Optional[int] = None
        self._chunks: Optional[PlainChunks] = None
        if is_plain(dataset):
            first = dataset[:1].tobytes()  # to be sure that the bytes are where they seem to be
            self._offset = None if dataset.chunks else dataset.id.get_offset()
            self._chunks = PlainChunks(dataset, fd) if dataset.chunks else None
            if self.read(0, 1).tobytes() != first:
                self._offset = self._chunks = None

    def read(self, start: int, end: int) -> NDArray[Any]:
        """Return rows [end - start, ...].

        :raises EOFError: the file is shorter than it says
        """
        if self._chunks is not None and 4 * (end - start) < self._chunks.rows:
            found = self._chunks.read(start, end)
            if found is not None:
                return found
        if self._offset is None or start == end:
            value: NDArray[Any] = self._dataset[start:end]
            return value
        rows = np.empty((end - start, *self._tail), self._dtype)
        fill(rows, self._fd, self._offset + start * self.row_bytes)
        return rows

    def read_many(self, starts: NDArray[Any], ends: NDArray[Any]) -> list[NDArray[Any]]:
        """Return rows starts[i]..ends[i] for each i; what lies close together is read at once."""
        values: list[Optional[NDArray[Any]]] = [None] * len(starts)
        order = np.argsort(starts, kind="stable")
        for run in self._runs(starts[order], ends[order]):
            chosen = order[run]
            first, last = int(starts[chosen[0]]), int(ends[chosen].max())
            rows = self.read(first, last)
            low, high = (starts[chosen] - first).tolist(), (ends[chosen] - first).tolist()
            copied = last - first > _COPIED * (sum(high) - sum(low)) or len(set(low)) < len(low)
            for index, begin, end in zip(chosen.tolist(), low, high):
                values[index] = rows[begin:end].copy() if copied else rows[begin:end]
        return values  # type: ignore[return-value]

    def _runs(self, starts: NDArray[Any], ends: NDArray[Any]) -> Iterator[slice]:
        """Yield slices of sequences, sorted by start, to read at once."""
        far = starts[1:] - ends[:-1] > self._gap
        longest = max(_LARGEST_RUN // self.row_bytes, 1)
        begin = 0
        for end in [*(np.flatnonzero(far) + 1).tolist(), len(starts)]:
            if end - begin > 1 and ends[end - 1] - starts[begin] > longest:
                yield from _cut(starts, begin, end, longest)
            else:
                yield slice(begin, end)
            begin = end


def _cut(starts: NDArray[Any], begin: int, end: int, longest: int) -> Iterator[slice]:
    """Yield parts of a slice whose sequences begin within ``longest`` rows."""
    while begin < end:
        stop = max(int(np.searchsorted(starts[:end], starts[begin] + longest)), begin + 1)
        yield slice(begin, stop)
        begin = stop
