"""Auxiliary values of layers in a loop: what all steps share, or what belongs to a sequence as a whole."""

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
#: Of a slice of a value known for all steps: that value, [steps, ...].
ALL_STEPS: Aux[Any] = Aux("all steps")
#: Of a layer of a loop: a tensor [steps, ...] computed before the loop. `emit` gets its current step as a loop input.
STEP_INPUT: Aux[Any] = Aux("input of each step")
