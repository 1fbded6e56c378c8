"""Sequences which remain of an epoch when the number of ranks changes mid-epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def remaining_shard(order: NDArray[Any], shared: Sequence[Sequence[int]]) -> NDArray[Any]:
    """Return the sequences which remain of an epoch.

    :param order: array [sequences]
    :param shared: for each number of ranks so far, the sequences that each of them did, see `Progress.shared`
    """
    for done in shared:
        index = np.arange(len(order))
        order = order[index // len(done) >= np.asarray(done)[index % len(done)]]
    return order
