"""Lines of text files by number, for files of any size: an index in memory, the text on disk."""

from __future__ import annotations

import functools
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
from returnn_tf.datasets.text.line_index import LineIndex, sums_of

_BLOCK = 1 << 24
_MARK = 1 << 14  # divides _BLOCK
_NEWLINE = 10
# the blanks of Unicode beyond ASCII, in UTF-8
_WIDE_BLANK = re.compile(b"|".join(chr(code).encode() for code in range(128, 0x3001) if chr(code).isspace()))


class TextLines:
    """The lines of a file, found once in blocks; see `LineIndex`.

    :param path: a plain text, or a text or XML compressed by gzip (decompressed to a temporary file on disk); Bliss
        XML, whose lines are the transcriptions of its segments with single blanks
    :param skip_empty: leave out lines of no characters; in compressed texts also those of blanks. Segments are kept
    :param keep_open_end: keep a last line without a newline at its end also where the text is not compressed
    :raises DataError: the file is missing, empty or damaged
    """

    def __init__(self, path: str, *, skip_empty: bool, keep_open_end: bool = True) -> None:
        self.path = path
        bliss, packed = is_bliss(path), _is_gzip(path)
        self._index = LineIndex(path, skip_empty=skip_empty and not bliss, skip_blank=packed)
        try:
            with _opened(path, bliss, packed) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)  # datasets are not closed
            self._size = os.fstat(self._file).st_size
            if not self._size:
                raise DataError("text file %r is empty." % path)
            for start, block in self._blocks():
                self._index.add(start, block)
        except (OSError, EOFError, zlib.error) as exc:
            raise DataError("text file %r can't be read: %s" % (path, exc)) from exc
        self.keeps_open_end = packed or keep_open_end
        self.has_open_end = self._index.finish(self._size, keep_open_end=self.keeps_open_end)

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        for start in range(0, self._size, _BLOCK):
            yield start, np.frombuffer(self._read(start, min(_BLOCK, self._size - start)), np.uint8)

    def _read(self, start: int, size: int) -> bytes:
        content = os.pread(self._file, size, start)
        while len(content) < size:  # at most 2 GB at once
            more = os.pread(self._file, size - len(content), start + len(content))
            if not more:
                raise DataError("text file %r became shorter while it was in use." % self.path)
            content += more
        return content

    def __len__(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> NDArray[np.uint32]:
        """Return the number of bytes of each line."""
        return self._index.num_bytes

    def num_words(self) -> NDArray[np.int64]:
        """Return the number of words of each line, as ``str.split`` finds them."""
        counts = np.zeros(len(self), np.int64)
        for first, starts, ends in self._index.groups(_BLOCK):
            begin = int(starts[0])
            content = self._read(begin, int(ends[-1]) - begin)
            blank = _is_blank(np.frombuffer(content, np.uint8))
            begins = ~blank
            begins[1:] &= blank[:-1]
            total = sums_of(begins)
            counts[first : first + len(starts)] = total[ends - begin] - total[starts - begin]
            for match in () if content.isascii() else _WIDE_BLANK.finditer(content):
                index = first + int(np.searchsorted(ends, begin + match.start()))
                counts[index] = len(self.text(index).split())
        return counts

    def text(self, index: int) -> str:
        """Return a line without the newline; DataError with its number if it is not UTF-8."""
        content = self._read(*self._index.span(index))
        try:
            return content.decode("utf8")
        except UnicodeDecodeError as exc:
            raise DataError("%s: it is not UTF-8: %s" % (self.place(index), exc)) from None

    def place(self, index: int) -> str:
        """Return file and number of a line, for messages."""
        return "file %r, line %d" % (self.path, self._line_number(index))

    def _line_number(self, index: int) -> int:
        """Return the number of a line in the file (in Bliss files: of the segment), from 1."""
        end = self._index.span(index)[0]
        mark = end // _MARK
        return int(self._newlines_before[mark]) + self._read(mark * _MARK, end % _MARK).count(b"\n") + 1

    @functools.cached_property
    def _newlines_before(self) -> NDArray[np.int64]:
        """Return the number of newlines before each multiple of _MARK bytes; counted once, when a number is asked for.

        Where many lines are left out, each of them is told with its number.
        """
        counts = [
            np.add.reduceat(block == _NEWLINE, np.arange(0, len(block), _MARK), dtype=np.int64)
            for _, block in self._blocks()
        ]
        return np.concatenate([[0], np.cumsum(np.concatenate(counts))])


def _is_blank(content: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which bytes separate words, in ASCII: 9 to 13, and 28 to 32."""
    found: NDArray[np.bool_] = (content - np.uint8(9) <= 4) | (content - np.uint8(28) <= 4)
    return found


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
        if isinstance(exc, OSError) and exc.errno is not None and exc.filename is None:
            text = "%s (decompressed to %r; TMPDIR chooses another folder)"
            exc.strerror = text % (exc.strerror, tempfile.gettempdir())
        raise
    return file
