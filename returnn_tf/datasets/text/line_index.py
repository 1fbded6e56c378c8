"""Where the lines of a file are: found in blocks, 8 bytes per line."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError

_NEWLINE = 10
_LAST_BLANK = 32  # no byte up to this one is part of a word
_LONGEST_LINE = 2**32 - 1
_SPAN = 1 << 32  # starts are kept modulo this
_LINES_AT_ONCE = 1 << 17


class LineIndex:
    """Start and length of each line, in bytes. `add` takes the blocks of a file one after the other.

    :param path: of the file, for messages
    :param skip_empty: leave out lines of no characters
    :param skip_blank: leave out lines of blanks, too
    """

    def __init__(self, path: str, *, skip_empty: bool, skip_blank: bool) -> None:
        self._path = path
        self._skip_empty = skip_empty
        self._skip_blank = skip_blank and skip_empty
        self._parts: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]] = []
        self._crossings: list[int] = []  # the first line from 1 * _SPAN on, from 2 * _SPAN on, ...
        self._num_lines = 0
        self._line_start = 0  # of the line which is not complete yet
        self._num_signs = 0  # that are not blank, in it so far
        self._starts = self.num_bytes = np.zeros(0, np.uint32)

    def add(self, start: int, block: NDArray[np.uint8]) -> None:
        """Add a block of the file.

        :param start: its position in the file
        """
        found = np.flatnonzero(block == _NEWLINE)
        signs = None
        if self._skip_blank:
            sums = sums_of(block > _LAST_BLANK)
            signs = np.diff(sums[found], prepend=0)
            signs[:1] += self._num_signs
            self._num_signs = int(sums[-1] - sums[found[-1]]) if len(found) else self._num_signs + int(sums[-1])
        self._add_lines(found + start, signs)

    def finish(self, size: int, *, keep_open_end: bool) -> bool:
        """Complete the index; return whether the last line lacks a newline.

        :param size: of the file
        :param keep_open_end: whether such a line counts
        """
        has_open_end = self._line_start < size
        if has_open_end and keep_open_end:
            self._add_lines(np.array([size], np.int64), np.array([self._num_signs]) if self._skip_blank else None)
        if self._parts:
            self._starts = np.concatenate([starts for starts, _ in self._parts])
            self.num_bytes = np.concatenate([lengths for _, lengths in self._parts])
        self._parts = []
        return has_open_end

    def _add_lines(self, ends: NDArray[np.int64], signs: object) -> None:
        if not len(ends):
            return
        starts = np.empty_like(ends)
        starts[0] = self._line_start
        starts[1:] = ends[:-1] + 1
        self._line_start = int(ends[-1]) + 1
        lengths = ends - starts
        if int(lengths.max()) > _LONGEST_LINE:
            raise DataError("text file %r has a line of more than 4 GB; is it a text?" % self._path)
        if self._skip_empty:
            keep = lengths > 0 if signs is None else np.asarray(signs) > 0
            if not keep.all():
                starts, lengths = starts[keep], lengths[keep]
        while len(starts) and int(starts[-1]) >= (len(self._crossings) + 1) * _SPAN:
            border = (len(self._crossings) + 1) * _SPAN
            self._crossings.append(self._num_lines + int(np.searchsorted(starts, border)))
        self._num_lines += len(starts)
        self._parts.append(((starts % _SPAN).astype(np.uint32), lengths.astype(np.uint32)))

    def __len__(self) -> int:
        return self._num_lines

    def span(self, index: int) -> tuple[int, int]:
        """Return start and length of a line."""
        start = int(self._starts[index])
        if self._crossings:
            start += bisect.bisect_right(self._crossings, index) * _SPAN
        return start, int(self.num_bytes[index])

    def groups(self, most_bytes: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield neighbouring lines: number of the first one, starts and ends.

        :param most_bytes: of one group, if it is not a single line
        """
        for begin in range(0, len(self), _LINES_AT_ONCE):
            numbers = np.arange(begin, min(begin + _LINES_AT_ONCE, len(self)))
            starts = self._starts[begin : begin + _LINES_AT_ONCE].astype(np.int64)
            if self._crossings:
                starts += np.searchsorted(self._crossings, numbers, side="right") * _SPAN
            ends = starts + self.num_bytes[begin : begin + _LINES_AT_ONCE]
            first = 0
            while first < len(starts):
                last = max(int(np.searchsorted(ends, starts[first] + most_bytes)), first + 1)
                yield begin + first, starts[first:last], ends[first:last]
                first = last


def sums_of(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of the first n flags are set, for each n from 0."""
    sums = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, dtype=np.int64, out=sums[1:])
    return sums
