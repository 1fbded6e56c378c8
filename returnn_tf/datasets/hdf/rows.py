"""Reading many sequences of an HDF5 array at once.

Neighbours are read together. Rows that lie in the file as in memory, neither compressed nor converted, are read from
there without the HDF5 library, which takes 5 us or more for each request: with 300 000 sequences of 30 frames of 40
numbers in random order, a sequence takes 10 us of CPU instead of 21 (contiguous), 30 instead of 53 (chunks of 1024
rows), 248 instead of 601 (chunks of one column). See ``bench/hdf_loading.py``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any, Optional

import h5py
import numpy as np
from numpy.typing import NDArray

_MAX_KNOWN_CHUNKS = 100_000


def is_plain(dataset: h5py.Dataset) -> bool:
    """Return whether an array has rows, neither compressed nor converted when they are read."""
    plist = dataset.id.get_create_plist()
    same = dataset.dtype.kind in "iuf" and dataset.dtype.itemsize == dataset.id.get_type().get_size()
    found = plist.get_layout() == h5py.h5d.CHUNKED or dataset.id.get_offset() is not None
    return bool(same and found and dataset.size and not plist.get_nfilters())


def fill(rows: NDArray[Any], fd: int, offset: int) -> None:
    """Read an array from a place in a file.

    :raises EOFError: the file ends there
    """
    view: Any = rows.reshape(-1).view(np.uint8)
    position = 0
    while position < rows.nbytes:
        count = os.preadv(fd, [view[position:]], offset + position)
        if not count:
            raise EOFError("the file ends within the data")
        position += count


class PlainChunks:
    """Reads rows of a plain array with chunks.

    :param dataset: see `is_plain`
    :param fd: the file, open for reading
    """

    def __init__(self, dataset: h5py.Dataset, fd: int):
        self._dataset = dataset
        self._fd = fd
        self._dtype: np.dtype[Any] = dataset.dtype
        self._tail: tuple[int, ...] = tuple(dataset.shape[1:])
        self._widths: tuple[int, ...] = tuple(dataset.chunks[1:])
        self.rows: int = dataset.chunks[0]
        self._row_bytes = self._dtype.itemsize * int(np.prod(self._widths, dtype=np.int64))
        self._first_column = (0,) * len(self._tail)
        self._offsets: dict[tuple[int, ...], int] = {}

    def read(self, start: int, end: int) -> Optional[NDArray[Any]]:
        """Return rows as an array [end - start, ...]; None if a part of them was never written."""
        rows = np.empty((end - start, *self._tail), self._dtype)
        columns = [range(0, size, width) for size, width in zip(self._tail, self._widths)]
        for base in range(start - start % self.rows, end, self.rows):
            low, high = max(start, base), min(end, base + self.rows)
            for corner in itertools.product(*columns):
                offset = self._offset((base, *corner))
                if offset is None:
                    return None
                self._read_part(rows[low - start : high - start], corner, offset + (low - base) * self._row_bytes)
        return rows

    def place(self, start: int, end: int) -> Optional[int]:
        """Return the file offset of rows if one chunk holds all of them with all columns, or None."""
        base = start - start % self.rows
        if self._widths != self._tail or end > base + self.rows:
            return None
        offset = self._offset((base, *self._first_column))
        return None if offset is None else offset + (start - base) * self._row_bytes

    def _read_part(self, rows: NDArray[Any], corner: tuple[int, ...], offset: int) -> None:
        """Read some rows of one chunk into their place.

        :param rows: with all columns
        :param corner: where the columns of the chunk begin
        :param offset: of the first of the rows in the file
        """
        if self._widths == self._tail:
            fill(rows, self._fd, offset)
            return
        part = np.empty((len(rows), *self._widths), self._dtype)
        fill(part, self._fd, offset)
        place = rows[(slice(None), *(slice(first, first + width) for first, width in zip(corner, self._widths)))]
        place[...] = part[tuple(slice(0, size) for size in place.shape)]

    def _offset(self, corner: tuple[int, ...]) -> Optional[int]:
        """Return the place of a chunk in the file."""
        offset = self._offsets.get(corner)
        if offset is None:
            found: Optional[int] = self._dataset.id.get_chunk_info_by_coord(corner).byte_offset
            if found is None:
                return None
            if len(self._offsets) >= _MAX_KNOWN_CHUNKS:
                self._offsets.clear()
            self._offsets[corner] = offset = found
        return offset


_LARGEST_RUN = 8 << 20  # bytes to read at once
_SMALLEST_GAP = 1 << 13  # bytes that are read in vain rather than asking twice
_GAP_OF_LIBRARY = 1 << 16  # the same for what the HDF5 library reads, at least
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
        self.row_bytes: int = max(self._dtype.itemsize * int(np.prod(self._tail, dtype=np.int64)), 1)
        chunk_bytes = (dataset.chunks or (0,))[0] * self.row_bytes
        self._offset: Optional[int] = None
        self._chunks: Optional[PlainChunks] = None
        if is_plain(dataset):
            first = dataset[:1].tobytes()  # to be sure that the bytes are where they seem to be
            self._offset = None if dataset.chunks else dataset.id.get_offset()
            self._chunks = PlainChunks(dataset, fd) if dataset.chunks else None
            if self.read(0, 1).tobytes() != first:
                self._offset = self._chunks = None
        gap = _SMALLEST_GAP if self._offset is not None else max(_GAP_OF_LIBRARY, min(chunk_bytes, _LARGEST_RUN // 4))
        if self._chunks is not None:
            gap = _SMALLEST_GAP
        self._gap = gap // self.row_bytes

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
        """Return rows starts[i]..ends[i] for each i; neighbours are read at once."""
        values: list[Any] = [None] * len(starts)
        order = np.argsort(starts, kind="stable")
        alone: list[int] = []
        for run in self._runs(starts[order], ends[order]):
            if run.stop - run.start == 1:
                alone.append(int(order[run.start]))
            else:
                self._read_run(starts, ends, order[run], values)
        if alone:
            self._read_alone(starts[alone].tolist(), ends[alone].tolist(), alone, values)
        return values

    def _read_run(self, starts: NDArray[Any], ends: NDArray[Any], chosen: NDArray[Any], values: list[Any]) -> None:
        """Read neighbouring sequences at once.

        :param chosen: their indices
        :param values: gets the rows
        """
        first, last = int(starts[chosen[0]]), int(ends[chosen].max())
        rows = self.read(first, last)
        low, high = (starts[chosen] - first).tolist(), (ends[chosen] - first).tolist()
        copied = last - first > _COPIED * (sum(high) - sum(low)) or len(set(low)) < len(low)
        for index, begin, end in zip(chosen.tolist(), low, high):
            values[index] = rows[begin:end].copy() if copied else rows[begin:end]

    def _read_alone(self, starts: list[int], ends: list[int], chosen: list[int], values: list[Any]) -> None:
        """Read scattered sequences; into one array where the file holds their bytes as in memory."""
        parts: list[tuple[int, int, int, int]] = []
        for start, end, index in zip(starts, ends, chosen):
            place = self._place(start, end)
            if place is None:
                values[index] = self.read(start, end)
            else:
                parts.append((start, end, index, place))
        total = sum(end - start for start, end, _, _ in parts)
        rows = np.empty((total, *self._tail), self._dtype)
        flat: Any = rows.reshape(-1).view(np.uint8)
        view = memoryview(flat)
        begin = 0
        for start, end, index, place in parts:
            stop = begin + end - start
            part = view[begin * self.row_bytes : stop * self.row_bytes]
            if os.preadv(self._fd, [part], place) != len(part):
                fill(rows[begin:stop], self._fd, place)  # an error, or in several parts
            values[index] = rows[begin:stop]
            begin = stop

    def _place(self, start: int, end: int) -> Optional[int]:
        """Return the file offset of rows that are stored contiguously and as in memory, or None."""
        if self._offset is not None:
            return self._offset + start * self.row_bytes
        if self._chunks is None:
            return None
        place: Optional[int] = self._chunks.place(start, end)
        return place

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
