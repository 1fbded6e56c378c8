"""The content of entries in archives of RASR: feature vectors and alignments, as arrays."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, RasrDataError

FEATURES, ALIGNMENT = b"vector-f32", b"flow-alignment"
#: A label of an alignment is the number of an allophone plus this times the number of the state in it.
STATE_FACTOR = 1 << 26
_RUNS, _RUNS_WITH_NAMES, _EMISSIONS = b"ALIGNRLE", b"AALPHRLE", b"ALIGNEMI"
_WEIGHTED = 1 << 31


@dataclasses.dataclass(frozen=True)
class Features:
    """Vectors [time, dim] float32, and begin and end of each in seconds, [time, 2] float64."""

    vectors: NDArray[Any]
    times: NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The items of an alignment, usually one per frame.

    :param times: frame numbers [items]
    :param labels: number of the allophone + ``STATE_FACTOR`` * state [items], or classes if ``classes`` is set
    :param weights: float32 [items]
    :param classes: whether labels are classes of the acoustic model
    :param names: label -> name of the allophone with state, where the archive says it
    """

    times: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any]
    classes: bool = False
    names: dict[int, str] = dataclasses.field(default_factory=dict)

    @property
    def allophones(self) -> NDArray[Any]:
        """Return the number of the allophone of each item."""
        return self.labels % STATE_FACTOR

    @property
    def states(self) -> NDArray[Any]:
        """Return the number of the state of each item in its allophone."""
        return self.labels // STATE_FACTOR


class _Reader:
    """Reads numbers and strings from the content of an entry; DataError at its end."""

    def __init__(self, content: bytes, place: str):
        self.content = content
        self.place = place
        self.position = 0

    def error(self, fault: str) -> DataError:
        return RasrDataError("%s: %s (byte %d of %d)" % (self.place, fault, self.position, len(self.content)))

    def take(self, count: int) -> bytes:
        value = self.content[self.position : self.position + count]
        if len(value) < count:
            raise self.error("it ends too early, %d bytes are missing" % (count - len(value)))
        self.position += count
        return value

    def unpack(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> bytes:
        return self.take(self.unpack("I"))

    def packed(self) -> int:
        """Read a number in groups of 7 bits, lowest first; bit 7 of a byte: more follow."""
        value, shift = 0, 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise self.error("a packed number has more than 9 bytes")

    @property
    def left(self) -> int:
        return len(self.content) - self.position


def decode_features(content: bytes, place: str) -> Features:
    """Return the vectors of an entry.

    :param place: archive and entry, for messages
    :raises DataError: it holds something else, or vectors of different sizes
    """
    if not content:
        return Features(np.zeros((0, 0), np.float32), np.zeros((0, 2), np.float64))
    reader = _Reader(content, place)
    if content[4 : 4 + len(FEATURES)] != FEATURES or reader.string() != FEATURES:
        raise RasrDataError(
            "%s: it holds no features: it begins with %r, not with %r" % (place, content[:18], FEATURES)
        )
    blocks: list[NDArray[Any]] = []
    while reader.left or not blocks:
        blocks.append(_feature_block(reader, reader.unpack("I")))
    dims = {block["vector"].shape[1] for block in blocks if len(block)}
    if len(dims) > 1:
        raise reader.error("its vectors have different sizes: %s" % sorted(dims))
    blocks = [block for block in blocks if len(block)] or blocks[:1]
    vectors = np.concatenate([block["vector"] for block in blocks])
    return Features(vectors, np.concatenate([block["times"] for block in blocks]))


def _feature_block(reader: _Reader, count: int) -> NDArray[Any]:
    dim = struct.unpack_from("<I", reader.content, reader.position)[0] if count and reader.left >= 4 else 0
    size = 4 + 4 * dim + 16
    if size * count > reader.left:  # before an array type of this size is made
        raise reader.error("it ends before %d vectors of dim %d" % (count, dim))
    frame = np.dtype([("dim", "<u4"), ("vector", "<f4", (dim,)), ("times", "<f8", (2,))])
    block = np.frombuffer(reader.take(size * count), frame)
    other = np.flatnonzero(block["dim"] != dim)
    if len(other):
        raise reader.error("vector %d does not have the dim %d of the first" % (other[0], dim))
    return block


def decode_alignment(content: bytes, place: str) -> Alignment:
    """Return the alignment of an entry; an empty entry is one without frames.

    :param place: archive and entry, for messages
    :raises DataError: it holds something else, or is damaged
    """
    if not content:
        return _alignment([])
    reader = _Reader(content, place)
    if content[4 : 4 + len(ALIGNMENT)] != ALIGNMENT or reader.string() != ALIGNMENT:
        raise RasrDataError(
            "%s: it does not hold an alignment: it begins with %r, not with %r" % (place, content[:18], ALIGNMENT)
        )
    reader.unpack("I")
    magic = reader.take(8)
    if magic not in (_RUNS, _RUNS_WITH_NAMES, _EMISSIONS):
        raise reader.error("unknown form of an alignment: %r" % magic)
    count = reader.unpack("I")
    items = _weighted(reader, count - _WEIGHTED) if count >= _WEIGHTED else _runs(reader, count)
    names = _names(reader) if magic == _RUNS_WITH_NAMES else {}
    return _alignment(items, classes=magic == _EMISSIONS, names=names)


def _alignment(
    items: list[tuple[int, int, float]], *, classes: bool = False, names: Optional[dict[int, str]] = None
) -> Alignment:
    table = np.array(items, np.float64).reshape(-1, 3)  # holds u32 exactly
    return Alignment(
        table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2].astype(np.float32), classes, names or {}
    )


def _runs(reader: _Reader, count: int) -> list[tuple[int, int, float]]:
    """Read one frame per item: run-length encoded labels, and jumps in time."""
    items: list[tuple[int, int, float]] = []
    time = 0
    while len(items) < count:
        length = reader.unpack("b")
        if length == 0:
            time = reader.unpack("I")
            continue
        labels = [reader.unpack("I")] * -length if length < 0 else [reader.unpack("I") for _ in range(length)]
        items.extend((time + i, label, 1.0) for i, label in enumerate(labels))
        time += len(labels)
    if len(items) > count:
        raise reader.error("a run goes beyond the %d frames of the alignment" % count)
    return items


def _weighted(reader: _Reader, version: int) -> list[tuple[int, int, float]]:
    """Read frames with any number of weighted items each."""
    if version not in (1, 2):
        raise reader.error("unknown version %d of alignments with weights" % version)
    count = reader.packed()
    items: list[tuple[int, int, float]] = []
    time = 0
    while len(items) < count:
        number = reader.packed()
        if number % 2:
            time = reader.packed()
        if number // 2 > count - len(items):
            raise reader.error("a frame has %d items, but only %d are left" % (number // 2, count - len(items)))
        for _ in range(number // 2):
            label = reader.packed()
            items.append((time, label, reader.unpack("H") / 65535 if version == 1 else reader.unpack("f")))
        time += 1
    return items


def _names(reader: _Reader) -> dict[int, str]:
    names = {}
    for _ in range(reader.packed()):
        label = reader.packed()
        names[label] = reader.string().decode("utf8", "replace")
    return names
