"""Parameters as a plan declares them."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.sealing import Sealable


@dataclasses.dataclass(eq=False)
class ParamSpec(Sealable):
    """One parameter, known before any TF op exists.

    :param name: full name as in checkpoints, e.g. "output/W"
    :param shape: static sizes
    :param init: function (shape, numpy Generator) -> array
    :param trainable: whether the optimizer updates it
    :param layer_path: the layer that owns it
    :param updater_opts: the layer option of this name
    :param device: where the variable lives, e.g. "CPU"; None: TensorFlow decides
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: Any
    trainable: bool
    layer_path: str
    updater_opts: Optional[dict[str, Any]] = None
    device: Optional[str] = None

    @property
    def size(self) -> int:
        """Return the number of entries."""
        result = 1
        for s in self.shape:
            result *= s
        return result
