"""The values of layers in one lowering."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Callable, TypeVar

from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.layer import Node

T = TypeVar("T")


@dataclasses.dataclass
class NodeValues:
    """The values that layers have emitted so far.

    :param outputs: by node, in the layout of its template
    :param sub_outputs: further outputs, by node and name
    :param aux: auxiliary values by node, see `returnn_tf.graph.aux_values`; changed by `set_aux` alone
    """

    outputs: dict[Node, Any] = dataclasses.field(default_factory=dict)
    sub_outputs: dict[tuple[Node, str], Any] = dataclasses.field(default_factory=dict)
    aux: dict[Node, dict[Aux[Any], Any]] = dataclasses.field(default_factory=dict)

    def child(self) -> NodeValues:
        """Return a copy for the body of a loop."""
        return dataclasses.replace(
            self, outputs=dict(self.outputs), sub_outputs=dict(self.sub_outputs), aux=dict(self.aux)
        )

    def set_aux(self, node: Node, aux: Aux[T], value: T) -> None:
        """Store an auxiliary value of a node."""
        self.aux[node] = {**self.aux.get(node, {}), aux: value}  # a new dict, as children share the old one

    def change_aux(self, nodes: Iterable[Node], func: Callable[[Any, int], Any]) -> None:
        """Keep the auxiliary values of nodes in line with outputs whose batch entries were changed.

        :param func: (tensor, batch axis) -> tensor
        """
        for node in nodes:
            for aux, value in self.aux.get(node, {}).items():
                axis = aux.batch_axis(node)
                if axis is not None:
                    self.set_aux(node, aux, aux.each(functools.partial(_at, func, axis), value))


def _at(func: Callable[[Any, int], Any], axis: int, x: Any) -> Any:
    return func(x, axis)
