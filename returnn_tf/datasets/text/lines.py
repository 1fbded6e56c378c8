"""Lines of text files by number, for files of any size: an index in memory, the text on disk."""

from __future__ import annotations

import gzip
import os
import re
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.text.bliss import is_bliss, read_bliss

_BLOCK = 1 << 24
_NEWLINE = 10
_LAST_BLANK = 32  # no byte up to this one is part of a word
_LONGEST_LINE = 2**32 - 1
# what separates words: in ASCII, and the other blanks of Unicode in UTF-8
_IS_BLANK = np.array([chr(byte).isspace() and byte < 128 for byte in range(256)])
_WIDE_BLANK = re.compile(b"|".join(chr(code).encode() for code in range(128, 0x3001) if chr(code).isspace()))


class TextLines:
    """The lines of a file, found once in blocks; the index takes 12 bytes per line.

    :param path: a plain text, or a text or XML compressed by gzip (decompressed to a temporary file on disk); Bliss
        XML, whose lines are the transcriptions of its segments with single blanks
    :param skip_empty: leave out lines of no characters; in compressed texts also those of blanks. Segments are kept
    :param keep_open_end: keep a last line without a newline at its end also where the text is not compressed
    :raises DataError: the file is missing, empty or damaged
    """

    def __init__(self, path: str, *, skip_empty: bool, keep_open_end: bool = True) -> None:
        self.path = path
        bliss, packed = is_bliss(path), _is_gzip(path)
        try:
            with _opened(path, bliss, packed) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)  # datasets are not closed
            self._size = os.fstat(self._file).st_size
            if not self._size:
                raise DataError("text file %r is empty." % path)
            ends = self._newlines()
        except (OSError, EOFError, zlib.error) as exc:
            raise DataError("text file %r can't be read: %s" % (path, exc)) from exc
        self.has_open_end = not len(ends) or int(ends[-1]) != self._size - 1
        self.keeps_open_end = packed or keep_open_end
        if self.has_open_end and self.keeps_open_end:
            ends = np.append(ends, self._size)
        self._index(ends, skip_empty=skip_empty and not bliss, skip_blank=packed)

    def _newlines(self) -> NDArray[np.int64]:
        found = [np.flatnonzero(block == _NEWLINE) + start for start, block in self._blocks()]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        for start in range(0, self._size, _BLOCK):
            yield start, np.frombuffer(self._read(start, min(_BLOCK, self._size - start)), np.uint8)

    def _read(self, start: int, size: int) -> bytes:
        content = os.pread(self._file, size, start)
        if len(content) != size:
            raise DataError("text file %r became shorter while it was in use." % self.path)
        return content

    def _index(self, ends: NDArray[np.int64], *, skip_empty: bool, skip_blank: bool) -> None:
        starts = np.zeros(len(ends), np.int64)
        starts[1:] = ends[:-1] + 1
        lengths = ends - starts
        if len(lengths) and int(lengths.max()) > _LONGEST_LINE:
            raise DataError("text file %r has a line of more than 4 GB; is it a text?" % self.path)
        if skip_empty:
            keep = self._with_words(starts, ends) if skip_blank else lengths > 0
            if not keep.all():
                starts, lengths = starts[keep], lengths[keep]
        self._starts = starts
        #: bytes of each line
        self.num_bytes = lengths.astype(np.uint32)

    def _with_words(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which lines have other characters than blanks."""
        keep = np.zeros(len(starts), np.bool_)
        for first, last, begin, content in self._line_blocks(starts, ends):
            counts = np.concatenate([[0], np.cumsum(np.frombuffer(content, np.uint8) > _LAST_BLANK)])
            keep[first:last] = counts[ends[first:last] - begin] > counts[starts[first:last] - begin]
        return keep

    def _line_blocks(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield whole lines, about a block at once: number of the first, of the one after the last, position, bytes."""
        first = 0
        while first < len(starts):
            last = max(int(np.searchsorted(ends, starts[first] + _BLOCK)), first + 1)
            begin = int(starts[first])
            yield first, last, begin, self._read(begin, int(ends[last - 1]) - begin)
            first = last

    def num_words(self) -> NDArray[np.int64]:
        """Return the number of words of each line, as ``str.split`` finds them."""
        starts, ends = self._starts, self._starts + self.num_bytes
        counts = np.zeros(len(starts), np.int64)
        for first, last, begin, content in self._line_blocks(starts, ends):
            blank = _IS_BLANK[np.frombuffer(content, np.uint8)]
            begins = ~blank
            begins[1:] &= blank[:-1]
            total = np.concatenate([[0], np.cumsum(begins)])
            counts[first:last] = total[ends[first:last] - begin] - total[starts[first:last] - begin]
            for match in _WIDE_BLANK.finditer(content):
                index = int(np.searchsorted(ends, begin + match.start()))
                counts[index] = len(self.text(index).split())
        return counts

    def __len__(self) -> int:
        return len(self._starts)

    def text(self, index: int) -> str:
        """Return a line without the newline; DataError with its number if it is not UTF-8."""
        content = self._read(int(self._starts[index]), int(self.num_bytes[index]))
        try:
            return content.decode("utf8")
        except UnicodeDecodeError as exc:
            raise DataError("%s: it is not UTF-8: %s" % (self.place(index), exc)) from None

    def place(self, index: int) -> str:
        """Return file and number of a line, for messages."""
        return "file %r, line %d" % (self.path, self._line_number(index))

    def _line_number(self, index: int) -> int:
        """Return the number of a line in the file (in Bliss files: of the segment), from 1."""
        number, end = 1, int(self._starts[index])
        for start, block in self._blocks():
            number += int(np.count_nonzero(block[: max(end - start, 0)] == _NEWLINE))
            if start + len(block) >= end:
                break
        return number


def _is_gzip(path: str) -> bool:
    with open(path, "rb") as file:  # that it can be opened is checked before
        return file.read(2) == b"\x1f\x8b"


def _opened(path: str, bliss: bool, packed: bool) -> IO[bytes]:
    if not bliss and not packed:
        return open(path, "rb")
    if not bliss:
        with gzip.open(path, "rb") as file:
            return _stored(iter(lambda: file.read(_BLOCK), b""))
    return _stored((segment.text + "\n").encode("utf8") for segment in read_bliss(path))


def _stored(parts: Iterable[Any]) -> IO[bytes]:
    """Return a temporary file without a name, which disappears with its last user."""
    file = tempfile.TemporaryFile(prefix="returnn_tf_text_")
    try:
        for part in parts:
            file.write(part)
        file.flush()
    except BaseException as exc:
        file.close()
        if isinstance(exc, OSError) and exc.errno is not None:
            exc.strerror = "%s (decompressed to %r; TMPDIR chooses another folder)" % (
                exc.strerror, tempfile.gettempdir())  # fmt: skip
        raise
    return file
