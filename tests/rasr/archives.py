"""Writes archives as RASR does, for tests that read them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.rasr.datasets.archive import END, MAGIC, START, Entry
from returnn_tf.rasr.datasets.entries import ALIGNMENT, FEATURES, Features

SIZES = struct.Struct("<III")  # size, compressed size, checksum
RUNS = b"ALIGNRLE"


class ArchiveWriter:
    """Writes an archive; the index is written by ``close``, so use it as a context manager.

    :param path: a new file; an existing one is replaced
    :param compress: store entries compressed by zlib
    """

    def __init__(self, path: str, *, compress: bool = False):
        self._file = open(path, "wb")
        self._compress = compress
        self._entries: dict[str, Entry] = {}
        self._file.write(MAGIC + b"\0")

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, name: str, content: bytes) -> None:
        """Append an entry."""
        stored = zlib.compress(content) if self._compress else content
        encoded = name.encode("utf8")
        self._file.write(START + struct.pack("<I", len(encoded)) + encoded)
        entry = Entry(self._file.tell(), len(content), len(stored) if self._compress else 0)
        self._entries[name] = entry
        self._file.write(SIZES.pack(entry.size, entry.compressed, 0) + stored + END)

    def close(self) -> None:
        """Write the index, and mark the archive as complete."""
        if self._file.closed:
            return
        start = self._file.tell()
        self._file.write(struct.pack("<I", len(self._entries)))
        for name, entry in self._entries.items():
            encoded = name.encode("utf8")
            self._file.write(struct.pack("<I", len(encoded)) + encoded)
            self._file.write(struct.pack("<QII", entry.position, entry.size, entry.compressed))
        removed = self._file.tell()
        self._file.write(struct.pack("<IQQ", 0, removed, start))
        self._file.seek(len(MAGIC))
        self._file.write(b"\1")
        self._file.close()


def encode_features(features: Features) -> bytes:
    """Return the content of an entry with these vectors."""
    count, dim = features.vectors.shape
    frame = np.dtype([("dim", "<u4"), ("vector", "<f4", (dim,)), ("times", "<f8", (2,))])
    block = np.zeros(count, frame)
    block["dim"], block["vector"], block["times"] = dim, features.vectors, features.times
    return struct.pack("<I", len(FEATURES)) + FEATURES + struct.pack("<I", count) + block.tobytes()


def encode_alignment(labels: NDArray[Any]) -> bytes:
    """Return the content of an entry with one label per frame."""
    parts = [struct.pack("<I", len(ALIGNMENT)), ALIGNMENT, struct.pack("<I", 1), RUNS, struct.pack("<I", len(labels))]
    labels = np.asarray(labels, np.int64)
    starts = [0, *(np.flatnonzero(np.diff(labels)) + 1)] if len(labels) else []
    for start, end in zip(starts, [*starts[1:], len(labels)]):
        for first in range(start, end, 128):
            parts.append(struct.pack("<bI", -min(end - first, 128), labels[start]))
    return b"".join(parts)
