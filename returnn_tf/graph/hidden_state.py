"""The hidden state of recurrent layers: its layout, the layer that has it, and its values."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.layer import Node
from returnn_tf.graph.layer_plan import HiddenState


def recurrent_node(node: Node) -> Node:
    """Return the layer whose hidden state a layer forwards: that of its source or of its inner layer, else its own."""
    while True:
        inner = node.sources[0] if node.layer.forwards_state and len(node.sources) == 1 else node.passes_on
        if inner is None:
            return node
        node = inner


def hidden_state_of(node: Node) -> Optional[HiddenState]:
    """Return the hidden state that a planned layer has or forwards, or None."""
    return recurrent_node(node).hidden_state


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
