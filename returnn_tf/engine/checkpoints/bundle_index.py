"""Where the values of a bundle are in its files of data.

The index of a bundle is a table of LevelDB (``table_format.md`` there): blocks of entries sorted by key, whose keys
leave out what they share with the one before; a block with the place of each of these blocks; and a footer with the
place of that block. The values of the entries are messages `BundleEntryProto`, that of the empty key is a
`BundleHeaderProto`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from returnn_tf.util.lazy_tf import tf

_FOOTER = 48
_NOT_COMPRESSED = 0  # the type of a block that is not compressed


@dataclass(frozen=True)
class StoredPlace:
    """Where the numbers of a value are.

    :param file: number of the file of data
    :param offset: in bytes
    """

    file: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def stored_places(index: str) -> dict[str, StoredPlace]:
    """Return the places of the values of a bundle whose numbers are in one piece.

    Texts, parts of larger variables, numbers in big-endian order and entries in compressed blocks are not among them.

    :param index: path of the index, which is intact
    :raises OSError: it can't be read
    """
    from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

    with open(index, "rb") as file:
        data = file.read()
    at = len(data) - _FOOTER
    for _ in range(2):  # the place of a block without meaning here
        _, at = _varint(data, at)
    found: dict[str, StoredPlace] = {}
    for _, place in _entries(_block(data, data, at)):
        for key, value in _entries(_block(data, place, 0)):
            if not key:
                if BundleHeaderProto.FromString(value).endianness != BundleHeaderProto.LITTLE:
                    return {}
                continue
            entry = BundleEntryProto.FromString(value)
            dtype = tf.as_dtype(entry.dtype)
            if dtype == tf.string or entry.slices or not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
                continue
            shape = tuple(dim.size for dim in entry.shape.dim)
            found[key.decode("utf8")] = StoredPlace(entry.shard_id, entry.offset, shape, np.dtype(dtype.as_numpy_dtype))
    return found


def _block(table: bytes, handle: bytes, at: int) -> bytes:
    """Return the contents of a block; none if they are compressed.

    :param handle: has offset and size of the block
    :param at: where in the handle
    """
    offset, at = _varint(handle, at)
    size, _ = _varint(handle, at)
    return table[offset : offset + size] if table[offset + size] == _NOT_COMPRESSED else b""


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block, which ends with places of keys that are whole, and the number of these."""
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, seven bits a byte, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
