"""One sequence, as datasets of users make it."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.core.data_spec import num_frames


class DatasetSeq:
    """The data of one sequence.

    :param seq_idx: position in the epoch
    :param features: array of key "data", or arrays by key
    :param targets: further arrays by key, or the array of key "classes"
    :param seq_tag: name; "seq-<seq_idx>" by default
    :param complete_frac: fraction of the epoch that is done with it, if known
    """

    def __init__(
        self,
        seq_idx: int,
        features: Any,
        targets: Any = None,
        seq_tag: Optional[str] = None,
        complete_frac: Optional[float] = None,
    ):
        self.seq_idx = seq_idx
        self.seq_tag = seq_tag or "seq-%i" % seq_idx
        self.complete_frac = complete_frac
        self.features: dict[str, NDArray[Any]] = _by_key(features, "data")
        if targets is not None:
            self.features.update(_by_key(targets, "classes"))

    def __repr__(self) -> str:
        return "<DatasetSeq %i %r>" % (self.seq_idx, self.seq_tag)

    @property
    def num_frames(self) -> dict[str, int]:
        """Return frames by key."""
        return {key: num_frames(value) for key, value in self.features.items()}

    def get_data(self, key: str) -> NDArray[Any]:
        """Return the array of a key."""
        return self.features[key]

    def get_data_keys(self) -> list[str]:
        """Return the keys."""
        return list(self.features)


def _by_key(value: Any, key: str) -> dict[str, NDArray[Any]]:
    arrays = value if isinstance(value, dict) else {key: value}
    return {name: np.asarray(array) for name, array in arrays.items()}
