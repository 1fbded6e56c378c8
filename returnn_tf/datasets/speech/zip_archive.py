"""Zip files with many small members, read by several threads and processes."""

from __future__ import annotations

import os
import struct
import threading
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Callable, Optional

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
    :raises DataError: it is missing, damaged or no zip file
    """

    def __init__(self, path: str):
        self.path = path
        try:
            check_regular(path)
            with zipfile.ZipFile(path) as file:
                infos = file.infolist()
        except FileNotFoundError:
            raise FileDataError("zip file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
        except OSError as exc:
            raise FileDataError("zip file %r cannot be read: %s" % (path, exc.strerror or exc)) from exc
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as exc:
            raise FileDataError("zip file %r cannot be read: %s. Was it copied completely?" % (path, exc)) from exc
        facts = [(i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type, i.flag_bits) for i in infos]
        self._members: NDArray[Any] = np.array(facts, _FIELDS)
        self._rows: Optional[dict[str, int]] = {info.filename: row for row, info in enumerate(infos)}
        self._file: Optional[int] = None
        self._close: Callable[[], Any] = _nothing
        self._lock = threading.Lock()

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


def _nothing() -> None:
    """Close nothing."""
