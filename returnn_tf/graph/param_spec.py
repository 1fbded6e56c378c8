"""Parameters as a plan declares them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.graph.sealing import Sealable
from returnn_tf.util.lazy_tf import tf

#: Last parts of the names of the two matrices of an adapter, below the name of its parameter.
ADAPTER_PARTS = ("lora_a", "lora_b")


@dataclasses.dataclass(frozen=True, eq=False)
class Adapter:
    """Two matrices whose product is added to a parameter, viewed as a matrix with its last axis as columns.

    :param first: [rows, rank]
    :param second: [rank, columns]
    :param scale: factor on the product
    """

    first: ParamSpec
    second: ParamSpec
    scale: float

    @property
    def size(self) -> int:
        """Return the number of entries of both."""
        return self.first.size + self.second.size

    def added_to(self, value: Any, values: Mapping[str, Any]) -> Any:
        """Return the sum of the parameter and the product.

        :param value: tensor or variable, of the parameter
        :param values: of the two matrices by name
        """
        product = tf.matmul(tf.convert_to_tensor(values[self.first.name]), values[self.second.name])
        return value + self.scale * tf.reshape(product, value.shape)


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
    :param adapter: what layers see added to it while it is fine-tuned
    :param rate: factor on the learning rate
    :param frozen: not trainable because of ``fine_tune``, so that nothing changes it
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: Any
    trainable: bool
    layer_path: str
    updater_opts: Optional[dict[str, Any]] = None
    device: Optional[str] = None
    adapter: Optional[Adapter] = None
    rate: float = 1.0
    frozen: bool = False

    @property
    def size(self) -> int:
        """Return the number of entries."""
        result = 1
        for s in self.shape:
            result *= s
        return result
