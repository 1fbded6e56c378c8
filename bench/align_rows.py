"""The sizes of ``bench/align.py``, and its inputs. Imports numpy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: the scores of a transducer of more sequences do not fit into the memory of a small machine
JOINT_BATCH = 2
#: of the chunks: size, and distance
CHUNKS = (50, 25)


class Row(NamedTuple):
    """Sizes of a comparison."""

    frames: int
    batch: int
    classes: int
    labels: int

    @property
    def blank(self) -> int:
        """Return the last class."""
        return self.classes - 1

    def draw(self) -> list[np.ndarray]:
        """Return the scores [frames, batch, classes], lengths, labels and their lengths of a ragged batch."""
        rng = np.random.RandomState(1)
        lens = np.linspace(self.frames * 2 // 3, self.frames, self.batch).astype("int32")
        scores = rng.normal(0, 2, (self.frames, self.batch, self.classes)).astype("float32")
        labels = rng.randint(0, self.classes - 1, (self.batch, self.labels)).astype("int32")
        return [scores, lens, labels, lens * self.labels // self.frames]


ROWS: dict[str, Row] = {
    "digits": Row(80, 32, 12, 8),
    "phones": Row(500, 32, 48, 60),
    "speech": Row(300, 16, 1001, 50),
}
