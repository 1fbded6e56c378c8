"""Edit distances between references and hypotheses: error rates, and readable alignments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

import numpy as np

_GAP = "*"


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
    """Return pairs (reference, hypothesis) with the fewest errors; None for a deletion or insertion.

    The table is computed row by row, vectorised: insertions along a row are a running minimum.
    """
    names = {name: number for number, name in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    hyp = np.array([names[name] for name in hypothesis], np.int64)
    steps = np.arange(len(hyp) + 1)
    rows = [steps]
    for name in reference:
        row = np.empty(len(hyp) + 1, np.int64)
        row[0] = rows[-1][0] + 1
        row[1:] = np.minimum(rows[-1][1:] + 1, rows[-1][:-1] + (hyp != names[name]))
        rows.append(np.minimum.accumulate(row - steps) + steps)
    pairs: list[tuple[Optional[str], Optional[str]]] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        if i and j and rows[i][j] == rows[i - 1][j - 1] + (reference[i - 1] != hypothesis[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((reference[i], hypothesis[j]))
        elif i and rows[i][j] == rows[i - 1][j] + 1:
            i -= 1
            pairs.append((reference[i], None))
        else:
            j -= 1
            pairs.append((None, hypothesis[j]))
    return pairs[::-1]


def table(tag: str, pairs: Sequence[tuple[Optional[str], Optional[str]]]) -> str:
    """Return reference and hypothesis one above the other; a third line marks the errors."""
    columns = [(ref or _GAP, hyp or _GAP, "" if ref == hyp else "^") for ref, hyp in pairs]
    widths = [max(len(ref), len(hyp)) for ref, hyp, _ in columns]
    lines = [
        " ".join(column[line].ljust(width) for column, width in zip(columns, widths)).rstrip() for line in range(3)
    ]
    return "%s\n  ref: %s\n  hyp: %s\n       %s" % (tag, *lines)
