"""An epoch that is read strictly in order, since a sequence depends on those before or may turn out to be invalid."""

from __future__ import annotations

import random
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.epoch import Epoch, reading_error
from returnn_tf.logging.log import log


class InvalidSequence(DataError):
    """A sequence has what there is no label for."""


class InOrderEpoch(Epoch):
    """The sequences of an epoch, which share one stream of random numbers; it is read from its start to resume.

    :param dataset: has ``read_next(index, epoch, keys, rng, nth)``, which is called once for each sequence, in order
    :param epoch: number, from 1
    :param order: corpus indices in the order of reading
    :param keys: the data keys to read
    :param nth: how many times each had occurred in the epoch before
    :param by_itself: no random numbers run through the epoch
    :param skip_invalid: leave out sequences that raise `InvalidSequence`; later ones move up
    :param max_logged: number of those that are logged one by one
    """

    def __init__(
        self,
        dataset: Any,
        epoch: int,
        order: NDArray[Any],
        keys: list[str],
        nth: NDArray[Any],
        *,
        by_itself: bool,
        skip_invalid: bool,
        max_logged: int = 0,
    ) -> None:
        super().__init__(dataset, epoch, order, keys, nth)
        self._skip_invalid = skip_invalid
        self._max_logged = max_logged
        self._rng = None if by_itself else random.Random(dataset.epoch_seed(epoch))
        self._given = order
        self._nths = nth
        self._found: list[int] = []  # corpus indices of the sequences that were read
        self._next = 0
        self._read_ahead: dict[int, dict[str, NDArray[Any]]] = {}
        self._failed: dict[int, Exception] = {}
        self._num_skipped = 0

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None until it is known."""
        if self._skip_invalid and self._next < len(self._given):
            return None
        return len(self._found) if self._skip_invalid else len(self._given)

    def has(self, position: int) -> bool:
        """Return whether there is a sequence at this position; reads up to it if sequences may be left out."""
        if not self._skip_invalid:
            return position < len(self._given)
        self._read_to(position)
        return position < len(self._found)

    def index(self, position: int) -> int:
        """Return the corpus position of the sequence at this position of the epoch."""
        if not self._skip_invalid:
            return int(self._given[position])
        self._read_to(position)
        return self._found[position]

    def complete(self, position: int) -> Optional[float]:
        """Return the fraction of the epoch that is done after the sequence at this position."""
        return self._next / max(len(self._given), 1) if self._skip_invalid else (position + 1) / len(self._given)

    def _read_to(self, position: int) -> None:
        while len(self._found) <= position and self._next < len(self._given):
            index = int(self._given[self._next])
            given = index, self.epoch, self.keys, self._rng, int(self._nths[self._next])
            self._next += 1
            try:
                self._read_ahead[len(self._found)] = self.dataset.read_next(*given)
            except Exception as exc:  # told when the sequence is asked for
                if self._skip_invalid and isinstance(exc, InvalidSequence):
                    self._count_skipped(index, exc)
                    continue
                self._failed[len(self._found)] = exc
            self._found.append(index)

    def _count_skipped(self, index: int, reason: DataError) -> None:
        self._num_skipped += 1
        if self._num_skipped <= self._max_logged:
            log.warn("dataset %r: sequence %r is skipped: %s" % (self.dataset.name, self.dataset.tag(index), reason))

    def close(self) -> None:
        """Log how many sequences were left out."""
        super().close()
        if self._num_skipped:
            text = "dataset %r: %d of %d sequences of epoch %d were skipped"
            log.warn(text % (self.dataset.name, self._num_skipped, self._next, self.epoch))
            self._num_skipped = 0

    def _read(self, position: int) -> Example:
        index = self.index(position)
        self._read_to(position)
        try:
            if position in self._failed:
                raise self._failed[position]
            data = self.dataset.with_window(self._read_ahead.pop(position))
        except Exception as exc:
            raise reading_error(self.place(position), exc) from exc
        return Example(index=index, tag=self.dataset.tag(index), data=data, position=position)
