"""The best path of CTC: the best label of each frame, repetitions merged, blanks removed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.engine.decoding.decoder import Decoded, Decoder


class GreedyDecoder(Decoder):
    """Returns the labels of the best path, whose log probability is their score.

    :param blank: index of the blank

    >>> scores = np.log([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
    >>> GreedyDecoder(2, blank=0).decode(scores)[0].frames
    ((0, 2), (3, 4))
    """

    def __init__(self, num_labels: int, blank: int) -> None:
        super().__init__(num_labels)
        self.blank = blank

    def decode(self, log_probs: NDArray[Any]) -> list[Decoded]:
        """Return the one hypothesis; of equal scores in a frame the lower label counts."""
        scores = self.checked(log_probs)
        path = scores.argmax(axis=1)
        starts = np.flatnonzero(np.diff(path, prepend=-1))
        ends = np.append(starts[1:], len(path)) if len(path) else starts
        runs = [(int(path[a]), (int(a), int(b))) for a, b in zip(starts, ends) if path[a] != self.blank]
        total = float(scores.max(axis=1).sum(dtype="float64")) if len(path) else 0.0
        labels, frames = tuple(label for label, _ in runs), tuple(span for _, span in runs)
        return [Decoded(labels, frames, total, {"acoustic": total})]
