"""Small pictures as PNG."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def grey_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a picture in shades of grey as the content of a PNG file.

    :param pixels: [rows, columns], at least one of each; 0 is black, 255 white
    """
    rows, columns = pixels.shape
    head = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    lines = np.pad(pixels, [(0, 0), (1, 0)])  # each begins with the number of its filter, 0: none
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", _crc(kind + data)) for kind, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _crc(data: bytes) -> int:
    return zlib.crc32(data) & 0xFFFFFFFF
