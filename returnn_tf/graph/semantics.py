"""What a network means beyond its layers: the settings that change its values, whoever computes them."""

from __future__ import annotations

import dataclasses
from typing import Optional

from returnn_tf.graph.quantization import Quantization


@dataclasses.dataclass(frozen=True)
class Semantics:
    """The settings that a plan was made with and that its graph is emitted by.

    :param float_dtype: type of floats whose type nothing else determines, e.g. of parameters: "float32" or "float64"
    :param product_dtype: type in which products of float32 and their activations are computed, by the setting
        ``mixed_precision``; None: float32
    :param behavior_version: selects between old and new defaults
    :param quantization: which parameters are stored as smaller numbers; None: none
    """

    float_dtype: str = "float32"
    product_dtype: Optional[str] = None
    behavior_version: int = 0
    quantization: Optional[Quantization] = None
