"""The name ``layer`` in expressions for initial values."""

from __future__ import annotations

import types
from typing import Any

from returnn_tf.graph.layer import Node
from returnn_tf.tensor import Data


class LayerInExpression:
    """The layer whose parameter is initialised: its sources and options; its output is not known yet.

    :param node: being planned
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.name = node.path.rpartition("/")[2]
        self.sources = [types.SimpleNamespace(name=s.path.rpartition("/")[2], output=s.output) for s in node.sources]

    @property
    def input_data(self) -> Data:
        """Return the template of the input: of all sources side by side, for a class that concatenates them."""
        given = self._node.input
        if isinstance(given, Data):
            return given
        if not self._node.sources:
            raise AttributeError("the layer has no sources, so it has no input_data")
        return self._node.sources[0].output

    def __getattr__(self, name: str) -> Any:
        """Return an option."""
        return getattr(self._node.layer, name)
