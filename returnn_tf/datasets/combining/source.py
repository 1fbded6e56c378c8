"""A dataset as one of several sources that are read in turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Optional

from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import Example


class Source:
    """The sequences of one dataset in an epoch, one read ahead."""

    def __init__(self, dataset: Dataset, epoch: int):
        self._sequences: Generator[Example, None, None] = dataset.sequences(epoch)  # type: ignore[assignment]
        order = dataset.seq_order(epoch)
        self._total = float(dataset.opts.estimated_num_seqs or 1) if order is None else float(len(order))
        self._done = 0
        self._ahead: Optional[Example] = None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._sequences.close()

    def has_next(self) -> bool:
        """Return whether there is another sequence, reading it."""
        if self._ahead is None:
            self._ahead = next(self._sequences, None)
        return self._ahead is not None

    def next(self) -> Example:
        """Return the next sequence."""
        sequence, self._ahead = self._ahead, None
        assert sequence is not None
        self._done += 1
        return sequence

    @property
    def fraction(self) -> float:
        """Return the part that is done once the next sequence is read."""
        complete = None if self._ahead is None else self._ahead.complete
        return min((self._done + 1) / self._total, 1.0) if complete is None else complete

    @property
    def remaining(self) -> float:
        """Return how many sequences are not read yet, by the estimate."""
        return max(self._total - self._done, 0.0)
