"""Functions for the option ``map_seq_stream`` of PostprocessingDataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Callable

import numpy as np

from returnn_tf.config import ConfigError
from returnn_tf.datasets.combining.functions import call_with_known


class LaplaceOrdering:
    """Sorts blocks of sequences by length, alternately ascending and descending, so that neighbours are similar.

    :param num_seqs_per_bin: sequences of a block
    :param length_key: the data key whose frames are counted
    """

    def __init__(self, num_seqs_per_bin: int, length_key: str = "data"):
        if not isinstance(num_seqs_per_bin, int) or num_seqs_per_bin < 1:
            raise ConfigError("LaplaceOrdering: num_seqs_per_bin is %r, not a number above 0" % (num_seqs_per_bin,))
        self.num_seqs_per_bin = num_seqs_per_bin
        self.length_key = length_key

    def __call__(self, iterator: Iterable[Any], **_: Any) -> Iterator[Any]:
        """Yield the sequences in the new order."""
        block: list[Any] = []
        descending = False
        for sequence in iterator:
            block.append(sequence)
            if len(block) == self.num_seqs_per_bin:
                yield from self._sorted(block, descending)
                block, descending = [], not descending
        yield from self._sorted(block, descending)

    def _sorted(self, block: list[Any], descending: bool) -> list[Any]:
        fractions = [sequence["complete_frac"].raw_tensor for sequence in block]
        block = sorted(block, key=lambda sequence: len(sequence[self.length_key].raw_tensor), reverse=descending)
        for sequence, fraction in zip(block, fractions):  # the progress belongs to the place
            sequence["complete_frac"].raw_tensor = np.asarray(fraction)
        return block


class Sequential:
    """Applies several functions one after the other, either all to sequences or all to streams.

    :param functions: the first one is applied first
    """

    def __init__(self, *functions: Callable[..., Any]):
        self.functions = functions
        self.preserves_num_seqs = all(getattr(function, "preserves_num_seqs", False) for function in functions)

    def __call__(self, data: Any, **keywords: Any) -> Any:
        """Return the result of the last function."""
        for function in self.functions:
            data = call_with_known("Sequential", function, data, **keywords)
        return data
