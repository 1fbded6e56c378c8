"""Values that a searching loop has once per sequence, besides the copies for the hypotheses."""

from __future__ import annotations

import dataclasses
from typing import Any

from returnn_tf.graph.aux_values import Aux


@dataclasses.dataclass(frozen=True)
class PerSequence:
    """A value from outside a loop that the loop sees once per hypothesis; whoever uses this avoids the copies.

    :param values: once per sequence
    :param beam: hypotheses per sequence
    """

    values: Any
    beam: int


PER_SEQUENCE: Aux[PerSequence] = Aux("once per sequence")
