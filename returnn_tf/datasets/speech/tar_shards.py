"""The members of tar files by position, so that each can be read without those before it."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from returnn_tf.config.errors import FileDataError
from returnn_tf.datasets.core.safe_files import open_regular

_GZIP = b"\x1f\x8b"
_BLOCK = 512
_FORGOTTEN = 256  # members that tarfile keeps


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
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for number, info in enumerate(archive):
                    if info.isreg() and not info.issparse():
                        yield Member(info.name, info.offset_data, info.size)
                    if number % _FORGOTTEN == 0:  # tarfile keeps all that it has seen
                        archive.members = []  # type: ignore[attr-defined]
                end = archive.offset
            file.seek(end)
            if len(file.read(_BLOCK)) < _BLOCK:
                raise FileDataError("shard %r is cut off: it lacks the blocks that end a tar file" % name)
    except FileNotFoundError:
        raise FileDataError("shard %r does not exist (current directory: %s)" % (name, os.getcwd())) from None
    except OSError as exc:
        raise FileDataError("shard %r cannot be read: %s" % (name, exc.strerror or exc)) from exc
    except tarfile.TarError as exc:
        raise FileDataError("shard %r is no tar file, damaged or cut off: %s" % (name, exc)) from exc


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
