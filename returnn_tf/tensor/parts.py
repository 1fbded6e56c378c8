"""The parts of the axes of a parameter: the gates of a cell, the concatenated sources of an input."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Part:
    """A range of an axis. Parts of two networks with the same label belong together."""

    label: str
    size: int


Parts = list[Part]


def total_size(parts: Parts) -> int:
    """Return the total size of an axis with these parts."""
    return sum(part.size for part in parts)


def equal_parts(size: int, part: int, label: str) -> Parts:
    """Return the parts of an axis, all of one size, or an empty list if that does not divide the axis."""
    return [Part("%s %d" % (label, i), part) for i in range(size // part)] if part and size % part == 0 else []
