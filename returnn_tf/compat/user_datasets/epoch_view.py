"""The sequences of an epoch with RETURNN's names, as chunking functions of configs ask for them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from returnn_tf.compat.numbers_dict import NumbersDict
from returnn_tf.datasets.core.epoch import EpochReader


class EpochView:
    """The sequences of an epoch by position.

    :param reader: its other attributes are found here, too
    """

    def __init__(self, reader: EpochReader):
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_reader":
            raise AttributeError(name)
        return getattr(self._reader, name)

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Return whether there is a sequence at this position."""
        return self._reader.has(seq_idx)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return the number of frames by key."""
        return NumbersDict(self._reader.lengths(seq_idx))

    def get_tag(self, seq_idx: int) -> str:
        """Return the name of a sequence."""
        return self._reader.tag(seq_idx)

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return one array of a sequence, [time, ...]."""
        return self._reader.sequence(seq_idx).data[key]

    def get_data_keys(self) -> list[str]:
        """Return the data keys of this epoch."""
        return list(self._reader.keys)

    def load_seqs(self, start: int, end: int) -> None:
        """Read ahead the sequences at the positions start..end-1."""
        for position in range(start, end):
            if self._reader.has(position):
                self._reader.sequence(position)
