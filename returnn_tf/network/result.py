"""What `Network.run` gives: numpy values with their axes and lengths."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Tuple

import numpy


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """The output of one layer.

    :param value: batch axis first if there is one, the other axes in the order of the template
    :param axes: per axis "B" batch, "T" dynamic spatial, "S" static spatial, "F" feature
    :param sizes: lengths by array axis
    :param beam_scores: [batch, beam] log scores, in search only
    """

    value: numpy.ndarray
    axes: Tuple[str, ...]
    sizes: Dict[int, numpy.ndarray]
    beam_scores: Optional[numpy.ndarray] = None


@dataclasses.dataclass(frozen=True)
class RunResult:
    """All results of one run.

    :param layers: by layer path
    :param losses: reduced losses before their scale
    :param errors: by layer path, where the loss defines one
    :param counts: frames or sequences by which reports divide loss and error
    :param total_loss: scaled losses plus constraints; None without losses
    :param grads: of the total loss by parameter name, only if asked for
    """

    layers: Dict[str, LayerResult]
    losses: Dict[str, numpy.ndarray]
    errors: Dict[str, numpy.ndarray]
    counts: Dict[str, numpy.ndarray]
    total_loss: Optional[numpy.ndarray]
    grads: Dict[str, numpy.ndarray]
