"""Lines of text files by number, for files of any size: an index in memory, the text on disk."""

from __future__ import annotations

import bisect
import contextlib
import errno
import functools
import gzip
import os
import re
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import IO, Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import TextDataError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.files.index_file import SharedIndex, shared_index
from returnn_tf.datasets.text.bliss import is_bliss, read_bliss

_NEWLINE = 10
_LAST_BLANK = 32  # no byte up to this one is part of a word
_LONGEST_LINE = 2**32 - 1
_SPAN = 1 << 32  # starts are kept modulo this
_LINES_AT_ONCE = 1 << 17


class LineIndex:
    """Start and length of each line, in bytes.

    :param index: of `LineScanner`
    """

    def __init__(self, index: SharedIndex) -> None:
        self._starts, self.num_bytes = index.arrays["starts"], index.arrays["num_bytes"]
        self._crossings: list[int] = index.facts["crossings"]

    def __len__(self) -> int:
        return len(self._starts)

    def span(self, index: int) -> tuple[int, int]:
        """Return start and length of a line."""
        start = int(self._starts[index])
        if self._crossings:
            start += bisect.bisect_right(self._crossings, index) * _SPAN
        return start, int(self.num_bytes[index])

    def groups(
        self, most_bytes: int, most_lines: int = 0
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield neighbouring lines: number of the first one, starts and ends.

        :param most_bytes: of one group, if it is not a single line
        :param most_lines: of one group; default: as many as is quick
        """
        most_lines = most_lines or _LINES_AT_ONCE
        for begin in range(0, len(self), most_lines):
            numbers = np.arange(begin, min(begin + most_lines, len(self)))
            starts = self._starts[begin : begin + most_lines].astype(np.int64)
            if self._crossings:
                starts += np.searchsorted(self._crossings, numbers, side="right") * _SPAN
            ends = starts + self.num_bytes[begin : begin + most_lines]
            first = 0
            while first < len(starts):
                last = max(int(np.searchsorted(ends, starts[first] + most_bytes)), first + 1)
                yield begin + first, starts[first:last], ends[first:last]
                first = last


class LineScanner:
    """Finds the lines of a file. `add` takes its blocks one after the other.

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

    def finish(self, size: int, *, keep_open_end: bool) -> SharedIndex:
        """Return all that `LineIndex` needs, and the fact ``has_open_end``: the last line lacks a newline.

        :param size: of the file
        :param keep_open_end: whether such a line counts
        """
        has_open_end = self._line_start < size
        if has_open_end and keep_open_end:
            self._add_lines(np.array([size], np.int64), np.array([self._num_signs]) if self._skip_blank else None)
        starts, lengths = zip(*self._parts) if self._parts else ([np.zeros(0, np.uint32)],) * 2
        arrays = {"starts": np.concatenate(starts), "num_bytes": np.concatenate(lengths)}
        return SharedIndex(arrays, {"crossings": self._crossings, "has_open_end": has_open_end})

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
    """The lines of a file, found once in blocks; see `LineIndex`. Processes share the index of a large one.

    :param path: a plain text, or a text or XML compressed by gzip, which is decompressed to the index; Bliss XML, whose
        lines are the transcriptions of its segments with single blanks
    :param skip_empty: leave out lines of no characters; in compressed texts also those of blanks. Segments are kept
    :param keep_open_end: keep a last line without a newline at its end also where the text is not compressed
    :param name: of the file in messages; default: the path
    :param shared: share the index with other processes
    :param found: the index of an earlier one with the same options
    :param keep_open: between reads, which costs a descriptor
    :raises DataError: the file is missing, empty or damaged
    """

    def __init__(
        self,
        path: str,
        *,
        skip_empty: bool,
        keep_open_end: bool = True,
        name: str = "",
        shared: bool = True,
        found: Optional[SharedIndex] = None,
        keep_open: bool = True,
    ) -> None:
        self.path = name or path
        self.local = path
        self._is_bliss, self._is_packed = is_bliss(path), _is_gzip(path)
        self._skip_empty = skip_empty and not self._is_bliss
        self.keeps_open_end = self._is_packed or keep_open_end
        self._content: Any = None  # of a compressed text or of XML: all lines
        self._file: Optional[int] = None
        if not self._is_packed and not self._is_bliss:
            with self._errors(), open(path, "rb") as file:
                self._size = os.fstat(file.fileno()).st_size
                if keep_open:
                    self._file = os.dup(file.fileno())
                    weakref.finalize(self, os.close, self._file)  # datasets are not closed
        if found is None:
            options = [self._skip_empty, self.keeps_open_end]
            found = shared_index("lines", [path], options, self._scanned) if shared else self._scanned()
        #: what `found` is for another one
        self.found = found
        self._index = LineIndex(found)
        self.has_open_end: bool = found.facts["has_open_end"]
        if self._is_packed or self._is_bliss:
            self._content = found.arrays["content"]
            self._size = len(self._content)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, zlib.error) as exc:
            raise TextDataError("text file %r can't be read: %s" % (self.path, exc)) from exc

    def _scanned(self) -> SharedIndex:
        """Find the lines."""
        files: list[str] = []
        scanner = LineScanner(self.path, skip_empty=self._skip_empty, skip_blank=self._is_packed)
        with self._errors():
            if self._is_packed or self._is_bliss:
                with self._unpacked(files) as file:
                    self._size = os.fstat(file.fileno()).st_size
                    if self._size:
                        # a mapped file costs a descriptor, and there may be many small ones
                        is_small = self._size < _BLOCK
                        file.seek(0)
                        self._content = (np.fromfile if is_small else partial(np.memmap, mode="r"))(file, np.uint8)
            if not self._size:
                raise TextDataError("text file %r is empty." % self.path)
            for start, block in self._blocks():
                scanner.add(start, block)
            found = scanner.finish(self._size, keep_open_end=self.keeps_open_end)
        more = {} if self._content is None else {"content": self._content}
        return SharedIndex({**found.arrays, **more}, found.facts, files)

    def _unpacked(self, files: list[str]) -> IO[bytes]:
        """Return a temporary file with the lines of a compressed text or of XML.

        :param files: gets those that the XML includes
        """
        if not self._is_bliss:
            with gzip.open(self.local, "rb") as file:
                return _stored(iter(lambda: file.read(_BLOCK), b""))
        segments = read_bliss(self.path, use_cache_manager=self.local != self.path, included=files)
        return _stored((segment.text + "\n").encode("utf8") for segment in segments)

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        for start in range(0, self._size, _BLOCK):
            yield start, np.frombuffer(self._read(start, min(_BLOCK, self._size - start)), np.uint8)

    def _read(self, start: int, size: int) -> bytes:
        if self._content is not None:
            found: bytes = self._content[start : start + size].tobytes()
            return found
        with self._errors(), contextlib.ExitStack() as stack:
            file = self._file
            if file is None:
                file = stack.enter_context(open(self.local, "rb")).fileno()
            content = os.pread(file, size, start)
            while len(content) < size:  # at most 2 GB at once
                more = os.pread(file, size - len(content), start + len(content))
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

    def blocks(self, most_lines: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield neighbouring lines at once: number of the first one, how many, and all bytes from first to last.

        :param most_lines: of one block
        """
        for first, starts, ends in self._index.groups(_BLOCK, most_lines):
            begin = int(starts[0])
            yield first, len(starts), self._read(begin, int(ends[-1]) - begin)

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
    return TextLines(local_list(path, use_cache_manager=use_cache_manager), skip_empty=True, name=path)


def local_list(path: str, *, use_cache_manager: bool) -> str:
    """Return the path of a file that lists a corpus, or of its local copy.

    :raises DataError: the file is missing, or no regular one
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
    return local


def _is_blank(content: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the bytes that separate words in ASCII: 9 to 13, and 28 to 32."""
    found: NDArray[np.bool_] = (content - np.uint8(9) <= 4) | (content - np.uint8(28) <= 4)
    return found


def _is_gzip(path: str) -> bool:
    with open(path, "rb") as file:  # that it can be opened is checked before
        return file.read(2) == b"\x1f\x8b"


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
