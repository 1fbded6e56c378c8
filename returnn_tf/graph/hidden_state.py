"""The hidden state of recurrent layers: its layout, the layer that has it, and its values."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.node import Node
from returnn_tf.tensor import Data


@dataclasses.dataclass(frozen=True)
class HiddenState:
    """The state of a recurrent layer after the last frame.

    :param keys: names of the tensors; () means one tensor without a name
    :param parts: template of each tensor: they differ in the sizes of their feature axes only
    :param unit: the only unit for which such a state has a meaning; None: any unit with these keys
    """

    keys: tuple[str, ...]
    parts: tuple[Data, ...]
    unit: Optional[str] = None

    @property
    def count(self) -> int:
        """Return the number of tensors."""
        return len(self.parts)

    @property
    def sizes(self) -> list[int]:
        """Return the size of the feature axis of each tensor."""
        return [part.dim or 0 for part in self.parts]

    @property
    def feature_axis(self) -> Optional[int]:
        """Return the feature axis of the tensors."""
        return self.parts[0].feature_axis

    def __str__(self) -> str:
        """Return the names and sizes, e.g. "c (3) and h (3)"."""
        if not self.keys:
            return "one tensor without a name (%d)" % self.sizes[0]
        *others, last = ("%s (%d)" % item for item in zip(self.keys, self.sizes))
        return "%s and %s" % (", ".join(others), last) if others else last


def recurrent_node(node: Node) -> Node:
    """Return the layer whose hidden state a layer forwards: that of its source or of its inner layer, else its own."""
    while True:
        layer = node.layer
        inner = node.sources[0] if layer.forwards_state and len(node.sources) == 1 else layer
        inner = layer.inner if inner is layer else inner
        if not isinstance(inner, Node):
            return node
        node = inner


def hidden_state_of(node: Node) -> Optional[HiddenState]:
    """Return the hidden state that a planned layer has or forwards; None if there is none."""
    state: Optional[HiddenState] = recurrent_node(node).layer.hidden_state
    return state


def _batch_of_state(node: Node) -> Optional[int]:
    state = hidden_state_of(node)
    return None if state is None else state.parts[0].batch_axis


#: The tensors of the hidden state of a layer, in the order of `HiddenState.keys`.
HIDDEN_STATE: Aux[tuple[Any, ...]] = Aux(
    "hidden state",
    batch_axis=_batch_of_state,
    each=lambda func, parts: tuple(func(part) for part in parts),
    forwarded=True,
)
