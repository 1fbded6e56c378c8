"""Reading from an HDF5 file what lies in it as it is in memory, without the HDF5 library.

With chunks, that reads whole ones, also for a few rows.
"""

from __future__ import annotations

import itertools
import os
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
        """Return where rows lie in the file, if one chunk has all of them with all columns; else None."""
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
