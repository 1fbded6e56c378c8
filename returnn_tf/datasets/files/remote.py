"""Files of object stores and web servers (``s3://bucket/name``, ``gs://``, ``https://``), by the package fsspec."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

from returnn_tf.config.errors import FileDataError, FileError, error_name
from returnn_tf.util.installing import install_command

_URL = re.compile(r"[A-Za-z][\w+.-]*://")
_STAMPS = 1 << 50  # microseconds, i.e. 36 years: times that each file system can keep
_LONGEST_NAME = 100


def is_url(path: str) -> bool:
    """Return whether a path names a file of a store or server."""
    return _URL.match(path) is not None


class RemoteFile:
    """A file of a store or server.

    :param url: its address
    :raises ConfigError: a package for this kind of address is missing, or the kind is unknown
    """

    def __init__(self, url: str):
        self.url = url
        self._store, self._path = _store_of(url, os.getpid())

    def read(self) -> bytes:
        """Return the content; DataError if it cannot be read."""
        with self._errors():
            content: bytes = self._store.cat_file(self._path)
            return content

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield the content, at most so many bytes at once; DataError if it cannot be read."""
        with self._errors(), self._store.open(self._path, "rb", block_size=size) as file:
            yield from iter(lambda: file.read(size), b"")

    def exists(self) -> bool:
        """Return whether there is such a file."""
        with self._errors():
            return bool(self._store.exists(self._path))

    def matching(self) -> list[str]:
        """Return the addresses of the files that match the address as a pattern, sorted."""
        with self._errors():
            return sorted(self._store.unstrip_protocol(path) for path in self._store.glob(self._path))

    @property
    def size(self) -> int:
        """Return the number of bytes; DataError if the store does not tell, or there is no such file."""
        return self.facts()[0]

    def facts(self) -> tuple[int, int]:
        """Return the size, and a number in place of the time of modification that changes with the version.

        :raises DataError: there is no such file
        """
        size, version = self._facts
        return size, int.from_bytes(hashlib.sha256(version.encode()).digest()[:8], "big") % _STAMPS

    @functools.cached_property
    def _facts(self) -> tuple[int, str]:
        with self._errors():
            info = self._store.info(self._path)
            size, version = info.get("size"), "%s %s" % (self._store.ukey(self._path), info.get("ETag"))
        if size is None:
            raise FileDataError("file %r: the server does not tell its size" % self.url)
        return int(size), version

    @property
    def name_of_copy(self) -> str:
        """Return the path of a copy below the folder of copies."""
        name = re.sub(r"[^\w.-]", "_", self.url.rstrip("/").rsplit("/", 1)[-1])[-_LONGEST_NAME:]
        return "remote/%s-%s" % (hashlib.sha256(self.url.encode()).hexdigest()[:20], name)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what stores raise, which may be nearly anything, into a DataError that names the file."""
        try:
            yield
        except FileDataError:
            raise
        except FileNotFoundError as exc:
            reason = str(exc)
            known = not reason or reason.strip("/") in self.url
            raise FileDataError("file %r does not exist%s" % (self.url, "" if known else ": %s" % reason)) from exc
        except Exception as exc:
            raise FileDataError("file %r cannot be read: %s: %s" % (self.url, error_name(exc), exc)) from exc


@functools.lru_cache(maxsize=4096)
def _store_of(url: str, process: int) -> tuple[Any, str]:
    """Return the file system of an address, and the path there.

    :param process: its id: a file system with an event loop of its own is of no use in a forked process
    """
    try:
        import fsspec
    except ImportError as exc:
        raise FileError(
            "the package 'fsspec' is needed to read %r: %s. Install it: %s" % (url, exc, install_command("remote"))
        ) from exc
    try:
        store, path = fsspec.core.url_to_fs(url)
    except ImportError as exc:
        text = "a package is needed to read %r: %s. Install it: %s"
        raise FileError(text % (url, exc, install_command("remote"))) from exc
    except Exception as exc:  # of the package for this kind of address, e.g. for wrong credentials
        raise FileError("%r cannot be read: %s" % (url, exc)) from exc
    return store, path
