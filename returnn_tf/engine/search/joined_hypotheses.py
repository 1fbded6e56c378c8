"""The hypotheses of a search that goes on from block to block of frames, with what they had in all blocks so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Name -> [entries, ...]
Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Block:
    """A block, at whose end there are as many hypotheses as values.

    :param sources: of each: the hypothesis before the block that it continues
    """

    values: Sequence[Values]
    sources: Sequence[int]


class JoinedHypotheses:
    """Follows the hypotheses of one sequence back through the blocks. What all have in common is kept once."""

    def __init__(self) -> None:
        self._common: list[Values] = []
        self._blocks: list[_Block] = []  # those at whose end hypotheses differ

    def add(self, values: Sequence[Values], sources: Sequence[int]) -> None:
        """Add a block.

        :param values: of each hypothesis at the end of the block, for the frames of the block; with the same names
        :param sources: of each, the hypothesis before the block that it continues
        """
        self._blocks.append(_Block(values, sources))
        needed = set(range(len(values)))
        for place in range(len(self._blocks) - 1, -1, -1):
            if len(needed) == 1:
                (entry,) = needed
                self._common += self._path(entry, place)
                del self._blocks[: place + 1]
                return
            needed = {self._blocks[place].sources[entry] for entry in needed}

    def _path(self, entry: int, place: int) -> list[Values]:
        """Return the values of a hypothesis at the end of a block, in this block and in those before it."""
        found = []
        for block in self._blocks[place::-1]:
            found.append(block.values[entry])
            entry = block.sources[entry]
        return found[::-1]

    def values(self, entry: int) -> dict[str, NDArray[Any]]:
        """Return the values of a hypothesis for all frames so far; nothing before the first block."""
        if len(self._common) > 1:
            self._common = [_joined(self._common)]
        return _joined([*self._common, *(self._path(entry, len(self._blocks) - 1) if self._blocks else [])])


def _joined(parts: Sequence[Values]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
