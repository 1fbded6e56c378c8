"""The result of `Network.run`: numpy values with their axes and lengths."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """The output of one layer.

    :param value: batch axis first if there is one, the other axes in the order of the template
    :param axes: per axis "B" batch, "T" dynamic spatial, "S" static spatial, "F" feature
    :param sizes: lengths by array axis
    :param beam_scores: [batch, beam] log scores, in search only; of a decision [batch, 1]
    """

    value: NDArray[Any]
    axes: tuple[str, ...]
    sizes: dict[int, NDArray[Any]]
    beam_scores: Optional[NDArray[Any]] = None


@dataclasses.dataclass(frozen=True)
class RunResult:
    """All results of one run.

    :param layers: by layer path
    :param losses: reduced losses, unscaled
    :param errors: by layer path, where the loss defines one
    :param counts: numbers of frames or sequences that reports divide loss and error by
    :param total_loss: scaled losses plus constraints; None without losses
    :param grads: gradients of the total loss by parameter name, only on request
    """

    layers: dict[str, LayerResult]
    losses: dict[str, NDArray[Any]]
    errors: dict[str, NDArray[Any]]
    counts: dict[str, NDArray[Any]]
    total_loss: Optional[NDArray[Any]]
    grads: dict[str, NDArray[Any]]
