"""Lines of text files by number, for files of any size: an index in memory, the text on disk."""

from __future__ import annotations

import bisect
import errno
import functools
import gzip
import os
import re
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import TextDataError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.text.bliss import is_bliss, read_bliss

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
            sums = prefix_sums(block > _LAST_BLANK)
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
            raise TextDataError("text file %r has a line of more than 4 GB; is it a text?" % self._path)
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


def prefix_sums(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of set flags among the first n, for each n from 0."""
    sums = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, dtype=np.int64, out=sums[1:])
    return sums


class LineTags:
    """Tags such as "line-7", without a table of all of them.

    :param prefix: before the number, which counts from 0
    :param where: prefix of errors
    """

    def __init__(self, prefix: str, where: str) -> None:
        self._prefix = prefix
        self._where = where

    def tag(self, index: int) -> str:
        """Return the tag of a line."""
        return self._prefix + str(index)

    def indices(self, tags: Sequence[str], num_lines: int) -> NDArray[Any]:
        """Return the numbers in tags; DataError for a tag that no line has."""
        found = []
        for tag in tags:
            digits = str(tag)[len(self._prefix) :]
            number = int(digits) if digits.isascii() and digits.isdecimal() else num_lines
            if number >= num_lines or self.tag(number) != tag:
                raise TextDataError(
                    "%s has no sequence %r, only %r to %r." % (self._where, tag, self.tag(0), self.tag(num_lines - 1))
                )
            found.append(number)
        return np.asarray(found, np.int64)


_BLOCK = 1 << 24
_MARK = 1 << 14  # divides _BLOCK
# the blanks of Unicode beyond ASCII, in UTF-8
_WIDE_BLANK = re.compile(b"|".join(chr(code).encode() for code in range(128, 0x3001) if chr(code).isspace()))


class TextLines:
    """The lines of a file, found once in blocks; see `LineIndex`.

    :param path: a plain text, or a text or XML compressed by gzip (decompressed to a temporary file on disk); Bliss
        XML, whose lines are the transcriptions of its segments with single blanks
    :param skip_empty: leave out lines of no characters; in compressed texts also those of blanks. Segments are kept
    :param keep_open_end: keep a last line without a newline at its end also where the text is not compressed
    :param name: of the file in messages; default: the path
    :raises DataError: the file is missing, empty or damaged
    """

    def __init__(self, path: str, *, skip_empty: bool, keep_open_end: bool = True, name: str = "") -> None:
        self.path = name or path
        bliss, packed = is_bliss(path), _is_gzip(path)
        self._index = LineIndex(self.path, skip_empty=skip_empty and not bliss, skip_blank=packed)
        try:
            with _opened(path, bliss, packed) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)  # datasets are not closed
            self._size = os.fstat(self._file).st_size
            if not self._size:
                raise TextDataError("text file %r is empty." % self.path)
            for start, block in self._blocks():
                self._index.add(start, block)
        except (OSError, EOFError, zlib.error) as exc:
            raise TextDataError("text file %r can't be read: %s" % (self.path, exc)) from exc
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
                raise TextDataError("text file %r became shorter while it was in use." % self.path)
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
            total = prefix_sums(begins)
            counts[first : first + len(starts)] = total[ends - begin] - total[starts - begin]
            for match in () if content.isascii() else _WIDE_BLANK.finditer(content):
                index = first + int(np.searchsorted(ends, begin + match.start()))
                counts[index] = len(self.text(index).split())
        return counts

    def text(self, index: int) -> str:
        """Return a line without the newline; DataError with its number if it is not UTF-8."""
        return self._decoded(self._read(*self._index.span(index)), index)

    def texts(self) -> Iterator[str]:
        """Yield all lines, see `text`; they are read in blocks."""
        for first, starts, ends in self._index.groups(_BLOCK):
            begin = int(starts[0])
            content = self._read(begin, int(ends[-1]) - begin)
            for index, (start, end) in enumerate(zip((starts - begin).tolist(), (ends - begin).tolist()), first):
                yield self._decoded(content[start:end], index)

    def _decoded(self, content: bytes, index: int) -> str:
        try:
            return content.decode("utf8")
        except UnicodeDecodeError as exc:
            raise TextDataError("%s: it is not UTF-8: %s" % (self.place(index), exc)) from None

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

        Each line that is left out is reported with its number.
        """
        counts = [
            np.add.reduceat(block == _NEWLINE, np.arange(0, len(block), _MARK), dtype=np.int64)
            for _, block in self._blocks()
        ]
        return np.concatenate([[0], np.cumsum(np.concatenate(counts))])


def lines_of_corpus(path: str, *, use_cache_manager: bool) -> TextLines:
    """Return the lines of a file that lists a corpus, local or remote, without those of no characters.

    :param use_cache_manager: the option of the dataset
    :raises DataError: the file is missing, empty or damaged
    """
    local = local_copy(path, wanted=use_cache_manager)
    try:
        check_regular(local)
        if os.path.isdir(local):
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
    except FileNotFoundError:
        raise TextDataError("file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
    except OSError as exc:
        raise TextDataError("file %r cannot be read: %s" % (path, exc.strerror or exc)) from None
    return TextLines(local, skip_empty=True, name=path)


def _is_blank(content: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the bytes that separate words in ASCII: 9 to 13, and 28 to 32."""
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
