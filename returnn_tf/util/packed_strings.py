"""Many strings in little memory, such as the names of the sequences of a corpus."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_BLOCK = 64  # strings in one piece, which has their common beginning once
_SHIFT, _MASK = 6, _BLOCK - 1
_STEP = _BLOCK + 1  # offsets per block
_BATCH = 1 << 12  # strings that are handled as an array, where all are as long as the longest one
_LONGEST = 1 << 8  # bytes, for that


class PackedStrings:
    """A list of strings to which one can append, kept in pieces of 64, without the beginning that these share.

    Apart from its characters a string takes 3 bytes, so that names which are in an order take about 10.
    """

    def __init__(self) -> None:
        self._blocks: list[str] = []
        # for each block the length of the shared beginning, then the end of the rest of each string
        self._ends = array("H")
        self._waiting: list[str] = []  # for a block

    def append(self, text: str) -> None:
        """Add a string at the end."""
        self._waiting.append(text)
        if len(self._waiting) == _BLOCK:
            block, self._waiting = self._waiting, []
            size = _shared(min(block), max(block))
            rest = [text[size:] for text in block]
            ends = np.array([[*itertools.accumulate(map(len, rest), initial=size)]])
            self._add_blocks([block[0][:size] + "".join(rest)], ends)

    def _add_blocks(self, blocks: list[str], ends: NDArray[np.int64]) -> None:
        """Add whole blocks.

        :param ends: [blocks, _STEP]
        """
        if self._ends.typecode == "H" and int(ends[:, -1].max()) > 0xFFFF:
            self._ends = array("Q", self._ends)
        self._ends.frombytes(ends.astype(self._ends.typecode).tobytes())
        self._blocks += blocks

    def extend(self, texts: Sequence[bytes]) -> None:
        """Add strings in UTF-8, each of which ends before its first null character; other bytes are replaced."""
        for start in range(0, len(texts), _BATCH):
            part = texts[start : start + _BATCH]
            whole = 0 if self._waiting else len(part) // _BLOCK * _BLOCK
            if whole and not self._add_batch(part[:whole]):
                whole = 0
            for text in part[whole:]:
                self.append(text.split(b"\0", 1)[0].decode("utf8", "replace"))

    def _add_batch(self, texts: Sequence[bytes]) -> bool:
        """Add whole blocks of strings in a fraction of the time; return False if they are not short, in ASCII."""
        joined = b"".join(texts)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        width = int(sizes.max())
        if not 0 < width <= _LONGEST or not joined.isascii() or b"\0" in joined:
            return False
        is_rest = np.tri(width + 1, width, -1, bool) ^ True  # [length of the beginning, position]
        rows = np.frombuffer(joined, np.uint8)
        if len(rows) < width * len(texts):  # pad them
            rows = np.zeros((len(texts), width), np.uint8)
            rows[~is_rest[sizes]] = np.frombuffer(joined, np.uint8)
        blocks, by_block = rows.reshape(-1, _BLOCK, width), sizes.reshape(-1, _BLOCK)
        equal = (blocks == blocks[:, :1]).all(axis=1)
        shared = np.minimum(np.where(equal.all(axis=1), width, equal.argmin(axis=1)), by_block.min(axis=1))
        ends = np.cumsum(np.concatenate([shared[:, None], by_block - shared[:, None]], axis=1), axis=1)
        begins = np.repeat(shared, _BLOCK)
        begins[::_BLOCK] = 0  # the first one of a block is there as a whole
        rest = rows.reshape(-1, width)[is_rest[begins] & ~is_rest[sizes]]
        content = rest.tobytes().decode("ascii")
        stops = np.cumsum(ends[:, -1]).tolist()
        self._add_blocks([content[start:stop] for start, stop in zip([0, *stops], stops)], ends)
        return True

    def __len__(self) -> int:
        return len(self._blocks) * _BLOCK + len(self._waiting)

    def __getitem__(self, index: int) -> str:
        number = index >> _SHIFT
        if 0 <= number < len(self._blocks):
            block, ends, place = self._blocks[number], self._ends, index + number
            return block[: ends[number * _STEP]] + block[ends[place] : ends[place + 1]]
        if not 0 <= index < len(self):
            raise IndexError("no string %d, only %d" % (index, len(self)))
        return self._waiting[index & _MASK]

    def chosen(self, indices: Iterable[int]) -> list[str]:
        """Return the strings with these indices, none of which may be negative."""
        blocks, ends, num_packed = self._blocks, self._ends, len(self._blocks) * _BLOCK
        found = []
        for index in indices:
            if index < num_packed:
                number = index >> _SHIFT
                block, place = blocks[number], index + number
                found.append(block[: ends[number * _STEP]] + block[ends[place] : ends[place + 1]])
            else:
                found.append(self[index])
        return found

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            yield from self.chosen(range(start, min(start + _BLOCK, len(self))))

    def repeated(self) -> list[int]:
        """Return the indices of the strings that an earlier one equals."""
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        values, counts = np.unique(hashes, return_counts=True)
        seen: set[str] = set()
        found = []
        for index in np.flatnonzero(np.isin(hashes, values[counts > 1])).tolist():
            if self[index] in seen:
                found.append(index)
            seen.add(self[index])
        return found


def _shared(first: str, last: str) -> int:
    """Return the length of the common prefix of two strings."""
    for place, (one, other) in enumerate(zip(first, last)):
        if one != other:
            return place
    return min(len(first), len(last))
