"""Edit distances between references and hypotheses: error rates, and readable alignments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

import numpy as np
from numpy.typing import NDArray

_GAP = "*"
#: Errors that an alignment may have in the first attempt: rows of so many distances take about as long as short ones.
_LEAST_WIDTH = 128
#: More than any distance.
_FAR = 1 << 30


@dataclasses.dataclass
class Errors:
    """Error counts of a corpus."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference: int = 0  # labels or words of the references

    @property
    def total(self) -> int:
        """Return the edit distance."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Return the errors per label or word of the references; NaN without references."""
        return self.total / self.reference if self.reference else float("nan")

    def add(self, pairs: Sequence[tuple[Optional[str], Optional[str]]]) -> None:
        """Count the pairs of an alignment."""
        self.reference += sum(ref is not None for ref, _ in pairs)
        self.insertions += sum(ref is None for ref, _ in pairs)
        self.deletions += sum(hyp is None for _, hyp in pairs)
        self.substitutions += sum(None not in pair and pair[0] != pair[1] for pair in pairs)

    def join(self, other: Errors) -> None:
        """Add the counts of another corpus."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def text(self) -> str:
        """Return e.g. ``12.50% (2 of 16: 1 substitutions, 0 deletions, 1 insertions)``."""
        return "%.2f%% (%d of %d: %d substitutions, %d deletions, %d insertions)" % (
            100 * self.rate,
            self.total,
            self.reference,
            self.substitutions,
            self.deletions,
            self.insertions,
        )


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[Optional[str], Optional[str]]]:
    """Return pairs (reference, hypothesis) with the fewest errors; None for a deletion or insertion."""
    names = {name: number for number, name in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    ref, hyp = (np.array([names[name] for name in labels], np.int32) for labels in (reference, hypothesis))
    width, longest = max(_LEAST_WIDTH, abs(len(ref) - len(hyp))), max(len(ref), len(hyp))
    rows = _distances(ref, hyp, width)
    while rows[-1][len(hyp) - len(ref) + width] > width < longest:
        width = min(4 * width, longest)
        rows = _distances(ref, hyp, width)

    def distance(i: int, j: int) -> int:
        place = j - i + width
        return int(rows[i][place]) if 0 <= place <= 2 * width else _FAR

    pairs: list[tuple[Optional[str], Optional[str]]] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        found = distance(i, j)
        if i and j and found == distance(i - 1, j - 1) + (reference[i - 1] != hypothesis[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((reference[i], hypothesis[j]))
        elif i and found == distance(i - 1, j) + 1:
            i -= 1
            pairs.append((reference[i], None))
        else:
            j -= 1
            pairs.append((None, hypothesis[j]))
    return pairs[::-1]


def _distances(ref: NDArray[np.int32], hyp: NDArray[np.int32], width: int) -> list[NDArray[np.int32]]:
    """Return the distances between the first i labels of one sequence and the first j of another one.

    Only those with ``|i - j| <= width`` are there (Ukkonen 1985), since all ways with at most so many errors are among
    them: row i has j from ``i - width`` to ``i + width``. Rows are computed at once: insertions along them are a
    running minimum. What is behind the end of ``hyp`` has no meaning.
    """
    steps = np.arange(2 * width + 1, dtype=np.int32)
    padded = np.full(width + max(len(hyp), len(ref) + width) + 1, -1, np.int32)
    padded[width + 1 : width + 1 + len(hyp)] = hyp  # hyp[j - 1] is at j + width
    rows = [np.where(steps < width, _FAR, steps - width).astype(np.int32)]
    for i, label in enumerate(ref, 1):
        row = rows[-1] + (padded[i : i + 2 * width + 1] != label)
        row[:-1] = np.minimum(row[:-1], rows[-1][1:] + 1)
        row[: max(0, width - i)] = _FAR
        rows.append(np.minimum.accumulate(row - steps) + steps)
    return rows


def table(tag: str, pairs: Sequence[tuple[Optional[str], Optional[str]]]) -> str:
    """Return reference and hypothesis one above the other; a third line marks the errors."""
    columns = [(ref or _GAP, hyp or _GAP, "" if ref == hyp else "^") for ref, hyp in pairs]
    widths = [max(len(ref), len(hyp)) for ref, hyp, _ in columns]
    lines = [
        " ".join(column[line].ljust(width) for column, width in zip(columns, widths)).rstrip() for line in range(3)
    ]
    return "%s\n  ref: %s\n  hyp: %s\n       %s" % (tag, *lines)
