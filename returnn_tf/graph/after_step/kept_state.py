"""States of layers that are kept from batch to batch: what a plan declares of them. No TensorFlow."""

from __future__ import annotations

import dataclasses

from returnn_tf.graph.freezing import Freezable
from returnn_tf.tensor import Data


@dataclasses.dataclass(eq=False)
class KeptSpec(Freezable):
    """One tensor that a layer keeps after each batch, and begins the next one with.

    :param name: full name, e.g. "output/rec/keep_state_h"
    :param data: template; its batch axis holds the sequences, and another axis of unknown size grows
    :param resets: whether it is zero in the first batch of each pass over a dataset
    :param is_param: whether it is listed among the parameters, without being stored with them
    :param layer_path: the layer that keeps it
    :param fed: whether another program keeps it: it runs the exported graph, feeds the state and fetches the last one
    """

    name: str
    data: Data
    resets: bool
    is_param: bool
    layer_path: str
    fed: bool = False

    @property
    def variable_shape(self) -> tuple[int | None, ...]:
        """Return the shape of the variable, None where batches differ."""
        return self.data.static_shape

    @property
    def first_shape(self) -> tuple[int, ...]:
        """Return the shape before the first batch: one sequence, no frames."""
        batch = self.data.batch_axis
        return tuple(
            size if size is not None else 1 if axis == batch else 0 for axis, size in enumerate(self.variable_shape)
        )
