"""Losses on the gradient at a layer, which the updater minimises by a second update in the same step."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable


@dataclasses.dataclass(frozen=True)
class MetaLoss:
    """A loss on the gradient of the objective with respect to the output of a layer.

    :param name: as reported
    :param point: the output
    :param value: the gradient -> the loss, a scalar
    :param scale: its weight in the second update
    :param is_mean: whether it is a mean over the numbers of the output, not a sum
    """

    name: str
    point: Any
    value: Callable[[Any], Any]
    scale: float
    is_mean: bool = False
