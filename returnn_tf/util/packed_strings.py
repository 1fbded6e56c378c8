"""Many strings in little memory, such as the names of the sequences of a corpus."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 64  # strings in one piece, which has their common beginning once
_SHIFT, _MASK = 6, _BLOCK - 1
_STEP = _BLOCK + 1  # offsets per block
_BATCH = 1 << 12  # strings that are handled as an array, where all are as long as the longest one
_LONGEST = 1 << 8  # bytes, for that
_CODE = "utf8", "surrogatepass"  # what a literal may name


class PackedStrings:
    """A list of strings to which one can append, kept in pieces of 64, without the beginning that these share.

    Apart from its characters, in UTF-8, a string takes 3 bytes, so that names which are in an order take about 10.
    The list consists of arrays, which several processes may map; see `arrays`.
    """

    def __init__(self) -> None:
        self._content: Any = bytearray()
        self._begins: Any = array("Q")  # of each block in the content
        # for each block the length of the shared beginning, then the end of the rest of each string
        self._ends: Any = array("H")
        self._num_packed = 0
        self._waiting: list[bytes] = []  # for a block

    def append(self, text: str) -> None:
        """Add a string at the end."""
        self._waiting.append(text.encode(*_CODE))
        if len(self._waiting) == _BLOCK:
            self._pack_waiting()

    def _pack_waiting(self) -> None:
        block, self._waiting = self._waiting, []
        size = _shared(min(block), max(block))
        rest = [text[size:] for text in block]
        ends = [*itertools.accumulate(map(len, rest), initial=size)]
        ends += ends[-1:] * (_STEP - len(ends))  # of the last block of all
        self._add_blocks(block[0][:size] + b"".join(rest), np.array([ends]), len(block))

    def _add_blocks(self, content: bytes, ends: NDArray[np.int64], count: int) -> None:
        """Add whole blocks.

        :param content: of all of them
        :param ends: [blocks, _STEP]
        :param count: of the strings
        """
        if self._ends.typecode == "H" and int(ends[:, -1].max()) > 0xFFFF:
            self._ends = array("Q", self._ends)
        self._ends.frombytes(ends.astype(self._ends.typecode).tobytes())
        begins = np.cumsum(ends[:, -1]) - ends[:, -1] + len(self._content)
        self._begins.frombytes(begins.astype(np.uint64).tobytes())
        self._content += content
        self._num_packed += count

    def extend(self, texts: Sequence[bytes]) -> None:
        """Add strings in UTF-8, each of which ends before its first null character; other bytes are replaced."""
        for start in range(0, len(texts), _BATCH):
            part = texts[start : start + _BATCH]
            joined = b"".join(part)
            if not joined.isascii() or b"\0" in joined:
                part = [text.split(b"\0", 1)[0].decode("utf8", "replace").encode("utf8") for text in part]
            self._extend(part)

    def extend_texts(self, texts: Sequence[str]) -> None:
        """Add strings."""
        for start in range(0, len(texts), _BATCH):
            self._extend([text.encode(*_CODE) for text in texts[start : start + _BATCH]])

    def _extend(self, texts: Sequence[bytes]) -> None:
        """Add at most ``_BATCH`` strings, whole blocks of them in a fraction of the time."""
        missing = -len(self._waiting) % _BLOCK
        self._waiting += texts[:missing]
        if len(self._waiting) == _BLOCK:
            self._pack_waiting()
        rest = texts[missing:]
        whole = len(rest) // _BLOCK * _BLOCK
        if whole:
            self._add_batch(rest[:whole])
        self._waiting += rest[whole:]

    def _add_batch(self, texts: Sequence[bytes]) -> None:
        """Add whole blocks of strings; beginnings of long ones are not shared."""
        joined = b"".join(texts)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        width = int(sizes.max())
        by_block = sizes.reshape(-1, _BLOCK)
        if not 0 < width <= _LONGEST:
            ends = np.zeros((len(by_block), _STEP), np.int64)
            np.cumsum(by_block, axis=1, out=ends[:, 1:])
            self._add_blocks(joined, ends, len(texts))
            return
        is_rest = np.tri(width + 1, width, -1, bool) ^ True  # [length of the beginning, position]
        rows = np.frombuffer(joined, np.uint8)
        if len(rows) < width * len(texts):  # pad them
            rows = np.zeros((len(texts), width), np.uint8)
            rows[~is_rest[sizes]] = np.frombuffer(joined, np.uint8)
        blocks = rows.reshape(-1, _BLOCK, width)
        equal = (blocks == blocks[:, :1]).all(axis=1)
        shared = np.minimum(np.where(equal.all(axis=1), width, equal.argmin(axis=1)), by_block.min(axis=1))
        ends = np.cumsum(np.concatenate([shared[:, None], by_block - shared[:, None]], axis=1), axis=1)
        begins = np.repeat(shared, _BLOCK)
        begins[::_BLOCK] = 0  # the first one of a block is there as a whole
        rest = rows.reshape(-1, width)[is_rest[begins] & ~is_rest[sizes]]
        self._add_blocks(rest.tobytes(), ends, len(texts))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that the list consists of, to which nothing is added any more."""
        if self._waiting:
            self._pack_waiting()
        kinds = {"content": np.uint8, "begins": np.uint64, "ends": np.uint16 if self._ends.itemsize == 2 else np.uint64}
        parts = {"content": self._content, "begins": self._begins, "ends": self._ends}
        found = {name: np.frombuffer(part, kinds[name]) for name, part in parts.items()}
        return {**found, "count": np.array([self._num_packed])}

    def digest(self) -> bytes:
        """Return a digest of how the list is kept; lists with the same one have the same strings."""
        found = hashlib.blake2b(digest_size=16)
        for array_ in self.arrays().values():
            found.update(array_.data)
        return found.digest()

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> PackedStrings:
        """Return the list that consists of arrays of `arrays`."""
        made = cls()
        made._content, made._begins, made._ends = (arrays[name].data for name in ("content", "begins", "ends"))
        made._num_packed = int(arrays["count"][0])
        return made

    def __len__(self) -> int:
        return self._num_packed + len(self._waiting)

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError("no string %d, only %d" % (index, len(self)))
        (text,) = self._few((index,))
        return text

    def chosen(self, indices: Sequence[int]) -> list[str]:
        """Return the strings with these indices, none of which may be negative."""
        found: list[str] = []
        for start in range(0, len(indices), _BATCH):
            part = indices[start : start + _BATCH]
            are_many = len(part) > _BLOCK and max(part) < self._num_packed
            found += self._many(np.asarray(part, np.int64)) if are_many else self._few(part)
        return found

    def _many(self, indices: NDArray[np.int64]) -> list[str]:
        """Return packed strings, in half of the time where there are many."""
        numbers = indices >> _SHIFT
        all_ends = np.frombuffer(self._ends, np.uint16 if self._ends.itemsize == 2 else np.uint64)
        begins = np.frombuffer(self._begins, np.uint64)[numbers].astype(np.int64)
        shared, first, last = (
            all_ends[places].astype(np.int64) for places in (numbers * _STEP, indices + numbers, indices + numbers + 1)
        )
        starts = np.stack([begins, begins + first], axis=1).reshape(-1)  # of both parts of each
        sizes = np.stack([shared, last - first], axis=1).reshape(-1)
        ends = np.cumsum(sizes)
        places = np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1])
        joined = np.frombuffer(self._content, np.uint8)[places].tobytes()
        bounds = [0, *ends[1::2].tolist()]
        if joined.isascii():
            text = joined.decode("ascii")
            return [text[start:end] for start, end in zip(bounds, bounds[1:])]
        return [joined[start:end].decode(*_CODE) for start, end in zip(bounds, bounds[1:])]

    def _few(self, indices: Iterable[int]) -> list[str]:
        content, begins, ends, num_packed = self._content, self._begins, self._ends, self._num_packed
        found = []
        for index in indices:
            if index < num_packed:
                number = index >> _SHIFT
                begin, place = begins[number], index + number
                stop = begin + ends[number * _STEP]
                parts = content[begin:stop], content[begin + ends[place] : begin + ends[place + 1]]
                found.append(b"".join(parts).decode(*_CODE))
            else:
                found.append(self._waiting[index - num_packed].decode(*_CODE))
        return found

    def __iter__(self) -> Iterator[str]:
        for number, start in enumerate(range(0, self._num_packed, _BLOCK)):
            begin, ends = self._begins[number], self._ends[number * _STEP : (number + 1) * _STEP].tolist()
            block = bytes(self._content[begin : begin + ends[-1]])
            if block.isascii():
                text = block.decode("ascii")
                shared = text[: ends[0]]
                count = min(_BLOCK, self._num_packed - start)
                yield from [shared + text[first:last] for first, last in zip(ends[:count], ends[1:])]
            else:
                yield from self.chosen(range(start, min(start + _BLOCK, self._num_packed)))
        yield from (text.decode(*_CODE) for text in self._waiting)

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


def _shared(first: bytes, last: bytes) -> int:
    """Return the length of the common prefix of two strings."""
    for place, (one, other) in enumerate(zip(first, last)):
        if one != other:
            return place
    return min(len(first), len(last))
