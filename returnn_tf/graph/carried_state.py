"""States that layers carry from one run of a graph to the next: their declarations, and what holds them in between."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

from returnn_tf.tensor import Data

#: The name of a state, bool [batch], that tells which sequences end with this block: whoever runs the graph sets it.
LAST_BLOCK = "last_block"


@dataclasses.dataclass(frozen=True, eq=False)
class KeptSpec:
    """One tensor that a layer keeps after each batch, and begins the next one with.

    :param name: full name, e.g. "output/rec/keep_state_h"
    :param data: template; its batch axis holds the sequences, and another axis of unknown size grows
    :param resets: whether it is zero in the first batch of each pass over a dataset
    :param is_param: whether it is listed among the parameters, where checkpoints have it for RETURNN
    :param layer_path: the layer that keeps it
    :param fed: whether another program keeps it: it runs the exported graph, feeds the state and fetches the last one
    """

    name: str
    data: Data
    resets: bool
    is_param: bool
    layer_path: str
    fed: bool = False

    #: No optimizer updates it.
    trainable: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Return the shape of the variable, None where batches differ."""
        return self.data.static_shape

    @property
    def dtype(self) -> str:
        """Return the dtype of the variable."""
        return self.data.dtype

    @property
    def first_shape(self) -> tuple[int, ...]:
        """Return the shape before the first batch: one sequence, no frames."""
        batch = self.data.batch_axis
        return tuple(size if size is not None else 1 if axis == batch else 0 for axis, size in enumerate(self.shape))


class CarriedState(abc.ABC):
    """Holds the states between two runs of a graph: in variables, in the hands of who runs the graph, or nowhere."""

    #: Whether all recurrences over frames continue where the last run ended, not just those of layers that ask for it.
    resumes: bool = False

    @abc.abstractmethod
    def read(self, spec: KeptSpec, first: Any) -> Any:
        """Emit a state before this run.

        :param first: the state before the first frame of a sequence, in the layout of its template
        """

    @abc.abstractmethod
    def write(self, spec: KeptSpec, value: Any) -> None:
        """Emit that a state is held for the next run.

        :param value: the state after the last frame of each sequence
        """


class NoCarriedState(CarriedState):
    """Every run begins with the first frame of its sequences."""

    def read(self, spec: KeptSpec, first: Any) -> Any:
        """Return the state before the first frame."""
        return first

    def write(self, spec: KeptSpec, value: Any) -> None:
        """Hold nothing."""
