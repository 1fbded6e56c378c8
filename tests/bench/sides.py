"""Workers of comparisons of searches whose times and labels are given."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Of two sentences.
LABELS = np.arange(20).reshape([2, 10]) % 2


class Side:
    """A worker whose searches take the times that are given."""

    def __init__(self, name: str, seconds: list[float], labels: Any = LABELS) -> None:
        self.name, self.seconds = name, seconds
        self.times: dict[str, list[float]] = {}
        self.last = {"result": labels}

    def wait(self, what: str, steps: int) -> None:
        """Be ready at once."""

    def run(self, what: str) -> None:
        """Note the next time."""
        self.times.setdefault(what, []).append(self.seconds.pop(0))

    def median(self, what: str) -> float:
        """Return the median of three."""
        return sorted(self.times[what])[1]
