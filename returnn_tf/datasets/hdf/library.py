"""Workarounds for the HDF5 library: locks of network file systems, strings, and implausible sizes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray


def open_unlocked(path: str) -> h5py.File:
    """Open without a lock, since network file systems often have none; unless this process has it open with one."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as exc:
        if "locking flag" not in str(exc):
            raise
        return h5py.File(path, "r")


def strings(value: NDArray[Any]) -> NDArray[Any]:
    """Convert bytes or str to str objects, cut at the first NUL."""
    out = np.empty(value.size, object)
    out[:] = [_text(entry) for entry in value.reshape(-1).tolist()]
    return out.reshape(value.shape)


def byte_strings(value: NDArray[Any]) -> list[bytes]:
    """Convert bytes or str to bytes objects, in UTF-8."""
    entries: list[bytes] = value.reshape(-1).tolist()
    if set(map(type, entries)) <= {bytes}:
        return entries
    return [entry if isinstance(entry, bytes) else str(entry).encode("utf8") for entry in entries]


def _text(entry: Any) -> str:
    text = entry.decode("utf8", "replace") if isinstance(entry, bytes) else str(entry)
    return text.split("\0", 1)[0] if "\0" in text else text


_ADDRESS = 8  # bytes of a file offset, in nearly all files
_RECORD = 4 + _ADDRESS + 4
_DEFLATE = 1  # number of the filter "gzip" in HDF5
_MAX_RATIO = 1100  # gzip cannot compress better


def impossible_size(dataset: h5py.Dataset) -> str:
    """Return the shape and size that an array declares if its file is too small to hold that; else an empty text.

    An array needs no storage before it is written, so a file of some kB can declare one of any size.
    """
    with np.errstate(over="ignore"):  # infinite is too large, too
        claimed = float(np.prod([*dataset.shape, dataset.dtype.itemsize], dtype=np.float64))
    size = os.path.getsize(dataset.file.filename)
    if claimed <= _MAX_RATIO * max(size, 1):
        return ""
    return (
        "claims the shape %s (%.3g GB), but the file has only %d bytes; it was damaged or not written to its end, "
        "write it again" % (list(dataset.shape), claimed / 1e9, size)
    )


def longest_string(dataset: h5py.Dataset) -> int:
    """Return the largest length that an array of strings declares; 0 for other arrays, and if it is expensive to find.

    A string of variable length is stored as its length, 4 bytes, and the place of its characters, 12 bytes. The library
    allocates the declared length, up to 4 GB each, before it checks whether the characters exist.

    :raises Exception: nearly any, from the HDF5 library, for damaged files
    """
    if dataset.dtype.kind != "O" or dataset.ndim != 1:
        return 0
    if dataset.file.id.get_create_plist().get_sizes()[0] != _ADDRESS:
        return 0
    blocks = (np.frombuffer(raw[: len(raw) // _RECORD * _RECORD], "<u4")[::4] for raw in _raw(dataset))
    return max((int(block.max()) for block in blocks if len(block)), default=0)


def _raw(dataset: h5py.Dataset) -> Iterator[bytes]:
    """Yield the stored records of the array in pieces."""
    count = dataset.shape[0]
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        if offset is not None:
            with open(dataset.file.filename, "rb") as file:
                file.seek(offset)
                yield file.read(count * _RECORD)
        return
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if filters not in ([], [_DEFLATE]):
        return
    for number in range(dataset.id.get_num_chunks()):
        (start,) = dataset.id.get_chunk_info(number).chunk_offset
        skipped, raw = dataset.id.read_direct_chunk((start,))
        size = min(dataset.chunks[0], max(count - start, 0)) * _RECORD
        if filters and not skipped:
            raw = zlib.decompressobj().decompress(raw, max(size, 1))
        yield raw[:size]
