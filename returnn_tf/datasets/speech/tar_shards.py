"""The members of tar files by position, so that each can be read without those before it."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, Optional

import numpy as np

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.core.safe_files import open_regular

_GZIP = b"\x1f\x8b"
_BLOCK = 512
_READ = 4 * _BLOCK  # a header with the records before it that give a time
_CHECKED_AT_ONCE = 256
_FILES = (b"0", b"\0", b"7")
#: Fields of records that matter here; all others are those of the header with more digits.
_IN_RECORDS = (b" path=", b" size=", b" GNU.sparse.", b" hdrcharset=")


class Member(NamedTuple):
    """A file in a tar file: name, position of its content, and number of bytes."""

    name: str
    offset: int
    size: int


def tar_members(path: str, name: str) -> Iterator[Member]:
    """Yield the files in a tar file; only the headers are read.

    :param name: of the tar file, for errors
    :raises DataError: it is missing, compressed, damaged or cut off
    """
    try:
        with open_regular(path) as file:
            if file.read(2) == _GZIP:
                raise FileDataError(
                    "shard %r is compressed as a whole, so that no part of it can be found; decompress it" % name
                )
            yield from _Headers(file, name).members()
    except FileNotFoundError:
        raise FileDataError("shard %r does not exist (current directory: %s)" % (name, os.getcwd())) from None
    except OSError as exc:
        raise FileDataError("shard %r cannot be read: %s" % (name, exc.strerror or exc)) from exc
    except tarfile.TarError as exc:
        raise FileDataError("shard %r is no tar file, damaged or cut off: %s" % (name, exc)) from exc


class _Headers:
    """Reads the headers of a tar file: plain ones here, in a fifth of the time, and what is special by `tarfile`.

    :param file: at any place
    :param name: of the file, for errors
    """

    def __init__(self, file: BinaryIO, name: str):
        self._file = file
        self._name = name
        self._archive: Any = None  # of `tarfile`, once it is needed
        self._unchecked: list[tuple[bytes, int]] = []  # headers, and the checksums in them
        self._is_plain = True  # as long as there is nothing that holds for all members that follow

    def members(self) -> Iterator[Member]:
        """Yield the files; TarError or DataError if the tar file is damaged or cut off."""
        found: list[Member] = []
        place: Optional[int] = 0
        while place is not None:
            member, place = self._plain(place) or self._special(place)
            if member is not None:
                found.append(member)
            if len(self._unchecked) >= _CHECKED_AT_ONCE or place is None:
                self._check()
                yield from found
                found = []

    def _plain(self, start: int) -> Optional[tuple[Optional[Member], Optional[int]]]:
        """Return the file at a place, None: no file, and the next place, None: the end; or None for what is special."""
        blocks = os.pread(self._file.fileno(), _READ, start)
        header, begin = blocks[:_BLOCK], start
        if not self._is_plain or (header and not header.strip(b"\0") and start == 0):
            return None
        # what follows a header "x" is about the next member, and stands there, too, unless it is too long
        if header[156:157] == b"x":
            size = _number(header[124:136])
            records = blocks[_BLOCK : _BLOCK + (size or 0)]
            if not size or len(records) < size or any(field in records for field in _IN_RECORDS):
                return None
            self._unchecked.append((header, _number(header[148:156]) or 0))
            begin += _BLOCK + _padded(size)
            header = blocks[begin - start :][:_BLOCK]
            if not header:
                header = os.pread(self._file.fileno(), _BLOCK, begin)
        if len(header) < _BLOCK:
            raise FileDataError("shard %r is cut off: it lacks the blocks that end a tar file" % self._name)
        if not header.strip(b"\0"):
            return None, None
        size, checksum = _number(header[124:136]), _number(header[148:156])
        path, prefix = (header[a:b].split(b"\0", 1)[0] for a, b in ((0, 100), (345, 500)))
        if header[156:157] not in _FILES or size is None or checksum is None or path.endswith(b"/"):
            return None
        self._unchecked.append((header, checksum))
        path = prefix + b"/" + path if prefix else path
        data = begin + _BLOCK
        return Member(path.decode("utf8", "surrogateescape"), data, size), data + _padded(size)

    def _special(self, start: int) -> tuple[Optional[Member], Optional[int]]:
        """Return what `_plain` does, as `tarfile` reads it."""
        if self._archive is None:
            self._file.seek(0)
            self._archive = tarfile.open(fileobj=self._file, mode="r:")
        if start:
            self._archive.firstmember = None
            self._archive.offset = start
        info = self._archive.next()
        self._archive.members = []  # it keeps all that it has seen
        self._is_plain = not self._archive.pax_headers
        if info is None:
            if len(os.pread(self._file.fileno(), _BLOCK, start)) < _BLOCK:
                raise FileDataError("shard %r is cut off: it lacks the blocks that end a tar file" % self._name)
            return None, None
        is_file = info.isreg() and not info.issparse()
        return Member(info.name, info.offset_data, info.size) if is_file else None, self._archive.offset

    def _check(self) -> None:
        """Compare the sums of the bytes of headers, where the sum itself counts as blanks, with those in them."""
        if self._unchecked:
            headers, sums = zip(*self._unchecked)
            blocks = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _BLOCK)
            found = blocks.sum(axis=1, dtype=np.int64) - blocks[:, 148:156].sum(axis=1, dtype=np.int64) + 8 * ord(" ")
            if (found != np.asarray(sums)).any():
                raise FileDataError("shard %r is no tar file, damaged or cut off: bad checksum" % self._name)
        self._unchecked = []


def _number(field: bytes) -> Optional[int]:
    """Return an octal number; None for what is written in another way."""
    digits = field.strip(b" \0")
    return int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else None


def _padded(size: int) -> int:
    return (size + _BLOCK - 1) // _BLOCK * _BLOCK


def read_member(path: str, offset: int, size: int) -> bytes:
    """Return the content of a member; threads may read at the same time.

    :raises DataError: the tar file is missing or has become shorter
    """
    try:
        with open_regular(path) as file:
            file.seek(offset)
            content = file.read(size)
    except OSError as exc:
        raise FileDataError("shard %r cannot be read: %s" % (path, exc.strerror or exc)) from exc
    if len(content) < size:
        raise FileDataError("shard %r is cut off" % path)
    return content
