"""Many strings in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

_ERRORS = "surrogatepass"  # a literal may name characters that UTF-8 lacks


class PackedStrings:
    """A list of strings to which one can append; kept as UTF-8 in one piece, with 8 bytes more per string."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._ends = array("q", [0])

    def append(self, text: str) -> None:
        """Add a string at the end."""
        self._content += text.encode("utf8", _ERRORS)
        self._ends.append(len(self._content))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError("no string %d, only %d" % (index, len(self)))
        return self._content[self._ends[index] : self._ends[index + 1]].decode("utf8", _ERRORS)

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

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
