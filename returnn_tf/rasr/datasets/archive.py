"""Archives of RASR ("sprint caches"): named entries in one file, and bundles of such files."""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, Optional, Union

from returnn_tf.config.errors import RasrDataError, did_you_mean
from returnn_tf.datasets.core import safe_files
from returnn_tf.logging.log import log

MAGIC = b"SP_ARC1\0"
START, END = struct.pack("<I", 0xAA55AA55), struct.pack("<I", 0x55AA55AA)
HEADER_SIZE = len(MAGIC) + 1
_SIZES = struct.Struct("<III")  # size, compressed size, checksum (unused)
_COMPARED = 2000  # comparing spellings takes long, and an archive can have millions of names


@dataclasses.dataclass(frozen=True)
class Entry:
    """Place of an entry.

    :param position: of its sizes in the file; the data follows them
    :param size: bytes of the content
    :param compressed: bytes in the file, 0 = not compressed
    """

    position: int
    size: int
    compressed: int


class Archive:
    """One archive, opened for reading; the index is read at once, the content on demand.

    An archive whose writing was broken off has no index: its complete entries are found by a scan.

    :param path: file, uncompressed (single entries may be compressed)
    :raises DataError: it is missing, no archive, or damaged
    """

    def __init__(self, path: str):
        self.path = path
        self.entries: dict[str, Entry] = {}
        try:
            with safe_files.open_regular(path) as file:
                self._read_index(file)
        except FileNotFoundError:
            raise RasrDataError("file %r does not exist (current directory: %s)" % (path, os.getcwd())) from None
        except OSError as exc:
            raise RasrDataError("archive %r can't be read: %s" % (path, exc.strerror or exc)) from exc

    def _read_index(self, file: IO[bytes]) -> None:
        size = os.fstat(file.fileno()).st_size
        header = file.read(HEADER_SIZE)
        if len(header) < HEADER_SIZE or not header.startswith(MAGIC):
            raise RasrDataError(
                "%r is no archive of RASR: it does not begin with %r." % (self.path, MAGIC.decode()[:-1])
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if header[-1] == 1:
                self.entries.update(self._table(content, size))
            else:
                self.entries.update(_scan(content))
                log.warn(
                    "archive %r has no index, since its writing was broken off; the %d complete entries are used."
                    % (self.path, len(self.entries))
                )

    def _table(self, content: mmap.mmap, size: int) -> Iterator[tuple[str, Entry]]:
        try:
            (start,) = struct.unpack_from("<Q", content, size - 8)
            if not HEADER_SIZE <= start <= size - 8:
                raise RasrDataError(self._damage("its index would begin at byte %d of %d" % (start, size)))
            position = start + 4
            for _ in range(struct.unpack_from("<I", content, start)[0]):
                (length,) = struct.unpack_from("<I", content, position)
                name = content[position + 4 : position + 4 + length].decode("utf8")
                entry = Entry(*struct.unpack_from("<QII", content, position + 4 + length))
                if entry.position + _SIZES.size + (entry.compressed or entry.size) > start:
                    raise RasrDataError(self._damage("entry %r would reach beyond the data" % name))
                position += 4 + length + 16
                yield name, entry
        except (struct.error, UnicodeDecodeError) as exc:
            raise RasrDataError(self._damage("its index can't be read (%s)" % exc)) from None

    def _damage(self, fault: str) -> str:
        return "archive %r is damaged: %s. Copy or write it again." % (self.path, fault)

    def size(self, name: str) -> int:
        """Return the bytes of an entry, when uncompressed."""
        return self.entries[name].size

    def read(self, name: str) -> bytes:
        """Return the content of an entry, uncompressed.

        :raises DataError: there is no such entry, or it is damaged
        """
        entry = self.entries.get(name)
        if entry is None:
            raise RasrDataError("archive %r has no entry %r. %s" % (self.path, name, _guess(name, self.entries)))
        count = entry.compressed or entry.size
        with open(self.path, "rb") as file:
            file.seek(entry.position + _SIZES.size)
            content = file.read(count)
        if len(content) != count:
            raise RasrDataError(self._damage("entry %r ends after %d of %d bytes" % (name, len(content), count)))
        return self._decompress(name, content, entry.size) if entry.compressed else content

    def _decompress(self, name: str, content: bytes, size: int) -> bytes:
        decoder = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # zlib or gzip
        try:
            plain = decoder.decompress(content, size + 1)
        except zlib.error as exc:
            raise RasrDataError(self._damage("entry %r can't be decompressed (%s)" % (name, exc))) from None
        if len(plain) != size:
            raise RasrDataError(self._damage("entry %r has other than %d bytes decompressed" % (name, size)))
        return plain


def _scan(content: mmap.mmap) -> Iterator[tuple[str, Entry]]:
    """Scan an archive without an index for complete entries, skipping anything else."""
    position = content.find(START, HEADER_SIZE)
    while position >= 0:
        found = _entry_at(content, position)
        if found is None:
            position = content.find(START, position + 1)
            continue
        name, entry, end = found
        if name:
            yield name, entry
        position = content.find(START, end)


def _entry_at(content: mmap.mmap, start: int) -> Optional[tuple[str, Entry, int]]:
    """Return name, entry and the byte after it, if there is an entry at this byte; a removed one has no name."""
    try:
        (length,) = struct.unpack_from("<I", content, start + 4)
        position = start + 8 + length
        size, compressed, _ = _SIZES.unpack_from(content, position)
        name = content[start + 8 : position].decode("utf8")
    except (struct.error, UnicodeDecodeError, OverflowError):
        return None
    end = position + _SIZES.size + (compressed or size)
    complete = content[end : end + 4] == END
    if not complete and (name or end > len(content)):
        return None
    return name, Entry(position, size, compressed), end + 4 if complete else end


class ArchiveBundle:
    """Several archives as one: a text file with one path per line, relative to its own folder; blank lines are skipped.

    :raises DataError: the file or one of the archives is missing or damaged
    """

    def __init__(self, path: str):
        self.path = path
        folder = os.path.dirname(os.path.abspath(path))
        lines = [line.strip() for line in safe_files.read_text(path).splitlines()]
        self.archives = [Archive(os.path.join(folder, line)) for line in lines if line]
        self._home = {name: archive for archive in reversed(self.archives) for name in archive.entries}
        self.entries = {name: entry for archive in self.archives for name, entry in archive.entries.items()}

    def size(self, name: str) -> int:
        """Return the bytes of an entry, when uncompressed."""
        return self._home[name].size(name)

    def read(self, name: str) -> bytes:
        """Return the content of an entry, uncompressed; DataError if absent."""
        if name not in self._home:
            raise RasrDataError("bundle %r has no entry %r. %s" % (self.path, name, _guess(name, self._home)))
        return self._home[name].read(name)


def open_archive(path: str) -> Union[Archive, ArchiveBundle]:
    """Open an archive, or a bundle if the name ends in ``.bundle``."""
    return ArchiveBundle(path) if path.endswith(".bundle") else Archive(path)


def full_name(archive: Union[Archive, ArchiveBundle], name: str) -> str:
    """Return the name of the entry with this name, or with this last part of the name if only one has it.

    :raises DataError: there is none, or several
    """
    if name in archive.entries:
        return name
    found = [entry for entry in archive.entries if entry.rsplit("/", 1)[-1] == name]
    if len(found) != 1:
        fault = "several entries end in %r, such as %s" % (name, found[:2]) if found else "there is no entry %r" % name
        raise RasrDataError("%r: %s. %s" % (archive.path, fault, _guess(name, archive.entries)))
    return found[0]


def _guess(name: str, names: Mapping[str, Any]) -> str:
    return did_you_mean(name, list(names)[:_COMPARED])
