"""Which sequences are left of an epoch when the number of ranks changes within it."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np


def remaining(order: Any, shared: Sequence[Sequence[int]]) -> Any:
    """The sequences which are left of an epoch, see `Progress.shared`.

    :param order: array [sequences]
    """
    for done in shared:
        index = np.arange(len(order))
        order = order[index // len(done) >= np.asarray(done)[index % len(done)]]
    return order
