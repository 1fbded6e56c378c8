"""The best path of CTC: the best label of each frame, repetitions merged, blanks removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.engine.decoding.decoder import Decoded, Decoder, Decoding


class GreedyDecoder(Decoder):
    """Returns the labels of the best path, whose log probability is their score.

    :param blank: index of the blank

    >>> scores = np.log([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
    >>> GreedyDecoder(2, blank=0).decode(scores)[0].frames
    ((0, 2), (3, 4))
    """

    def __init__(self, num_labels: int, blank: int) -> None:
        super().__init__(num_labels, blank)

    def begin(self) -> Decoding:
        """Begin a sequence, of which there is one hypothesis; of equal scores in a frame the lower label counts."""
        return _BestPath(self)


class _BestPath(Decoding):
    """The best path so far, as runs of the same label."""

    def __init__(self, decoder: GreedyDecoder) -> None:
        self._decoder = decoder
        self._runs: list[tuple[int, tuple[int, int]]] = []  # labels with their frames, without blanks
        self._last = -1  # label of the last frame
        self._frames = 0
        self._score = 0.0

    def advance(self, log_probs: NDArray[Any]) -> None:
        scores = self._decoder.checked(log_probs)
        if not len(scores):
            return
        path, begin = scores.argmax(axis=1), self._frames
        starts = np.flatnonzero(np.diff(path, prepend=-1))
        ends = np.append(starts[1:], len(path))
        for label, start, end in zip(path[starts].tolist(), starts.tolist(), ends.tolist()):
            if label == self._decoder.blank:
                continue
            if start == 0 and label == self._last:
                self._runs[-1] = (label, (self._runs[-1][1][0], begin + end))
            else:
                self._runs.append((label, (begin + start, begin + end)))
        self._last = int(path[-1])
        self._frames += len(path)
        self._score += float(scores.max(axis=1).sum(dtype="float64"))

    def best(self) -> tuple[Sequence[int], None]:
        return [label for label, _ in self._runs], None

    def results(self) -> list[Decoded]:
        labels, frames = tuple(label for label, _ in self._runs), tuple(span for _, span in self._runs)
        return [Decoded(labels, frames, self._score, {"acoustic": self._score})]
