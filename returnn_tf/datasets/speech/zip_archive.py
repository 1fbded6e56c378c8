"""Zip files with many small members, read by several threads and processes."""

from __future__ import annotations

import os
import struct
import threading
import weakref
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from typing import IO, Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, FileDataError
from returnn_tf.datasets.core.safe_files import check_regular

_ENCRYPTED = 0x1
_HEADER = struct.Struct("<4s5H3L2H")
_SIGNATURE = b"PK\x03\x04"
_LARGE = 64 << 20  # bytes of a member, half an hour of uncompressed speech
_MAX_RATIO = 100  # by which a large one is packed at most; audio is packed by 2 at best, silence and bombs by 1000
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what is read here; zipfile reads the rest
_FIELDS = [("offset", "i8"), ("packed", "i8"), ("size", "i8"), ("crc", "u4"), ("method", "u2"), ("flags", "u2")]


class ZipArchive:
    """The members of a zip file by their rows: their positions in its index.

    :param path: of the file
    :param members: of an archive of the same file, which then is not read
    :raises DataError: it is missing, damaged or no zip file
    """

    def __init__(self, path: str, members: Optional[NDArray[Any]] = None):
        self.path = path
        self._rows: Optional[dict[str, int]] = None
        self._members: NDArray[Any] = self._read_directory() if members is None else members.view(_FIELDS)
        self._file: Optional[int] = None
        self._close: Callable[[], Any] = _nothing
        self._lock = threading.Lock()

    def _read_directory(self) -> NDArray[Any]:
        """Return the members, and set the rows."""
        path = self.path
        try:
            check_regular(path)
            with open(path, "rb") as plain:
                found = plain_directory(plain) if os.sep == "/" else None
            if found is None:
                with zipfile.ZipFile(path) as file:
                    infos = file.infolist()
                found = np.array([_facts(info) for info in infos], np.int64), [info.filename for info in infos]
        except FileNotFoundError:
            raise FileDataError("zip file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
        except OSError as exc:
            raise FileDataError("zip file %r cannot be read: %s" % (path, exc.strerror or exc)) from exc
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as exc:
            raise FileDataError("zip file %r cannot be read: %s. Was it copied completely?" % (path, exc)) from exc
        facts, names = found
        self._rows = {name: row for row, name in enumerate(names)}
        members = np.empty(len(names), _FIELDS)
        for (field, _), column in zip(_FIELDS, facts.reshape(len(names), len(_FIELDS)).T):
            members[field] = column
        return members

    @property
    def members(self) -> NDArray[np.uint8]:
        """Return the places of all members, for another archive of the same file."""
        return np.frombuffer(self._members, np.uint8)

    @property
    def rows(self) -> dict[str, int]:
        """Return the rows by name, before `forget_names`."""
        assert self._rows is not None
        return self._rows

    def forget_names(self) -> None:
        """Free the memory of the names."""
        self._rows = None

    def read(self, row: int, name: str) -> bytes:
        """Read a member; threads may do so at the same time.

        :param name: for errors
        :raises DataError: it is damaged, encrypted, packed in another way than stored, deflated, bzip2, LZMA, or far
            larger than its packed form
        """
        member = self._members[row]
        if member["size"] > _LARGE and member["size"] > _MAX_RATIO * member["packed"]:
            text = "it would unpack from %d to %d bytes, which no audio does; make it again, or leave it out"
            raise self._error(name, text % (member["packed"], member["size"]))
        try:
            content = self._read(member, name)
        except (
            OSError,
            zipfile.BadZipFile,
            NotImplementedError,
            RuntimeError,
            ValueError,
            EOFError,
            zlib.error,
        ) as exc:
            if isinstance(exc, DataError):
                raise
            raise self._error(name, str(exc)) from exc
        if len(content) != member["size"] or zlib.crc32(content) != member["crc"]:
            raise self._error(name, "its content has another length or checksum than it should")
        return content

    def _read(self, member: Any, name: str) -> bytes:
        if member["method"] not in _PLAIN:
            with zipfile.ZipFile(self.path) as file:
                return file.read(name)
        start = self._start_of(member, name)
        packed = self._bytes(start, int(member["packed"]))
        if member["method"] == zipfile.ZIP_STORED:
            return packed
        return zlib.decompressobj(-15).decompress(packed, int(member["size"]) + 1)

    def _start_of(self, member: Any, name: str) -> int:
        """Return the file offset of the packed content of a member."""
        if member["flags"] & _ENCRYPTED:
            raise self._error(name, "it is encrypted")
        header = self._bytes(int(member["offset"]), _HEADER.size)
        if header[:4] != _SIGNATURE or len(header) < _HEADER.size:
            raise self._error(name, "there is no member at its place")
        *_, name_size, extra_size = _HEADER.unpack(header)
        return int(member["offset"]) + _HEADER.size + int(name_size) + int(extra_size)

    def _bytes(self, offset: int, count: int) -> bytes:
        with self._lock:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                self._close = weakref.finalize(self, os.close, self._file)
            if not hasattr(os, "pread"):
                os.lseek(self._file, offset, os.SEEK_SET)
                return os.read(self._file, count)
            file = self._file
        return os.pread(file, count, offset)

    def pieces(self, name: str, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the content of a member in pieces.

        :param size: bytes of the packed content of a piece
        :raises DataError: there is no such member, or it is damaged
        """
        member = self._members[self.rows[name]]
        crc = 0
        try:
            for piece in self._pieces(member, name, size):
                crc = zlib.crc32(piece, crc)
                yield piece
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as exc:
            raise self._error(name, str(exc)) from exc
        if crc != member["crc"]:
            raise self._error(name, "its content has another checksum than it should")

    def _pieces(self, member: Any, name: str, size: int) -> Iterator[bytes]:
        if member["method"] not in _PLAIN:
            with zipfile.ZipFile(self.path) as file, file.open(name) as content:
                yield from iter(lambda: content.read(size), b"")
            return
        position = self._start_of(member, name)
        end = position + int(member["packed"])
        unpack = zlib.decompressobj(-15)
        while position < end:
            packed = self._bytes(position, min(size, end - position))
            if not packed:
                raise self._error(name, "the zip file ends within it")
            position += len(packed)
            if member["method"] == zipfile.ZIP_STORED:
                yield packed
                continue
            while packed:  # at most as much at once, since a small file may hold much
                yield unpack.decompress(packed, 4 * size)
                packed = unpack.unconsumed_tail

    def _error(self, name: str, text: str) -> DataError:
        return FileDataError("zip file %r: member %r cannot be read: %s" % (self.path, name, text))

    def close(self) -> None:
        """Close the file; it is reopened on demand."""
        with self._lock:
            self._close()
            self._file, self._close = None, _nothing


def _facts(info: zipfile.ZipInfo) -> tuple[int, int, int, int, int, int]:
    return info.header_offset, info.compress_size, info.file_size, info.CRC, info.compress_type, info.flag_bits


_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_RECORD = struct.Struct("<4s6H3L5H2L")
_FULL = 0xFFFFFFFF  # stands for a number of 64 bits, which is elsewhere
_IN_UTF8 = 0x800
_NEWEST = 63  # version of the format that the standard library reads


def plain_directory(file: IO[bytes]) -> Optional[tuple[NDArray[np.int64], list[str]]]:
    """Return facts (see _FIELDS) and names of the members of a zip file as programs write it; None: it is unusual.

    The standard library, which reads all others, takes four times as long for a large one, and 1 kB of memory for each
    member.

    :param file: the zip file
    """
    size = file.seek(0, os.SEEK_END)
    end = size - _END.size
    if end < 0:
        return None
    file.seek(end)
    signature, *_, count, length, start, comment_size = _END.unpack(file.read(_END.size))
    if signature != b"PK\x05\x06" or comment_size:
        return None
    locator = end - _LOCATOR_64.size
    if locator >= _END_64.size:
        file.seek(locator - _END_64.size)
        tail = file.read(_END_64.size + _LOCATOR_64.size)
        if tail[_END_64.size :].startswith(b"PK\x06\x07"):
            signature, *_, count, length, start = _END_64.unpack_from(tail)
            end = locator - _END_64.size
            if signature != b"PK\x06\x06" or _LOCATOR_64.unpack_from(tail, _END_64.size)[2] != end:
                return None
    if start + length != end:
        return None
    file.seek(start)
    try:
        return _records(file.read(length), count)
    except (struct.error, UnicodeDecodeError, OverflowError):
        return None


def _records(content: bytes, count: int) -> Optional[tuple[NDArray[np.int64], list[str]]]:
    """Return facts and names of the members in the directory of a zip file; None: something is unusual."""
    facts = array("q")
    names: list[str] = []
    place = 0
    for _ in range(count):
        record = _RECORD.unpack_from(content, place)
        signature, _, version, flags, method, _, _, crc, packed, size, name_size, extra_size, comment_size = record[:13]
        place += _RECORD.size
        written = content[place : place + name_size]
        name = written.decode("ascii" if written.isascii() else "utf8" if flags & _IN_UTF8 else "cp437")
        if signature != b"PK\x01\x02" or version > _NEWEST or "\0" in name:
            return None
        place += name_size
        offset = record[-1]
        if size == _FULL or packed == _FULL or offset == _FULL:
            found = _long_numbers(content[place : place + extra_size], size, packed, offset)
            if found is None:
                return None
            size, packed, offset = found
        place += extra_size + comment_size
        facts.extend((offset, packed, size, crc, method, flags))
        names.append(name)
    return (np.array(facts).reshape(-1, len(_FIELDS)), names) if place == len(content) else None


def _long_numbers(extra: bytes, *numbers: int) -> Optional[tuple[int, int, int]]:
    """Return size, packed size and offset of a member with those of 64 bits, which its extra field begins with."""
    kind, length = struct.unpack_from("<2H", extra)
    wanted = [number == _FULL for number in numbers]
    if kind != 1 or length < 8 * sum(wanted):
        return None
    values = iter(struct.unpack_from("<%dQ" % sum(wanted), extra, 4))
    size, packed, offset = (next(values) if is_long else number for number, is_long in zip(numbers, wanted))
    return size, packed, offset


def _nothing() -> None:
    """Close nothing."""
