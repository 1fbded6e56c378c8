"""Parameters that begin with the value of a layer: what a plan knows of them. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.config.errors import OptionError
from returnn_tf.graph.layer import Node
from returnn_tf.tensor import Data


@dataclasses.dataclass(frozen=True, eq=False)
class ValueOfLayer:
    """The initialiser of a parameter with the value of a layer, which `returnn_tf.compiler.initial_values` computes.

    :param node: the layer
    :param into: the axes of the parameter
    :param mapping: axis of the layer -> axis of the parameter
    """

    node: Node
    into: Data
    mapping: tuple[Optional[int], ...]

    def __call__(self, shape: tuple[int, ...], rng: Any) -> Any:
        """Fail: only the network can compute the value, as it depends on other parameters."""
        raise OptionError("the value of the layer %r can only initialise a parameter of a network." % self.node.path)

    def nodes(self) -> Iterator[Node]:
        """Return everything that the value depends on, the layer itself last of its kind but in no further order."""
        seen: set[Node] = set()
        todo = [self.node]
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                yield node
                todo += [*node.deps, *node.inner]

    def input(self) -> Optional[Node]:
        """Return an input that the value depends on, so that it is not known before the first batch; None if none."""
        return next((node for node in self.nodes() if node.extern_key is not None), None)
