"""The results of a network, or of the step of a loop: values of layers, and losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.graph.layer import Node
from returnn_tf.graph.network_planner import NetworkPlanner


@dataclasses.dataclass(frozen=True)
class Result:
    """A layer whose value or loss is a result.

    :param planner: of its network; resolves the names in the options of the loss
    :param is_output: whether its value is a result
    :param with_loss: whether its loss is computed
    """

    planner: NetworkPlanner
    spec: LayerSpec
    node: Node
    is_output: bool
    with_loss: bool


class Results:
    """The results of a network, or those within the step of a loop, which has to bring them out."""

    def __init__(self) -> None:
        self.entries: list[Result] = []

    def add(self, result: Result) -> None:
        """Add a layer, if there is something to compute."""
        if result.is_output or result.with_loss:
            self.entries.append(result)

    def outputs(self) -> dict[str, Node]:
        """Return the layers whose values are results, by path."""
        return {result.spec.path: result.node for result in self.entries if result.is_output}

    def hide(self, nodes: Collection[Node]) -> None:
        """Drop layers, as they may not be computed."""
        self.entries = [result for result in self.entries if result.node not in nodes]

    def nodes_with_loss(self) -> list[Node]:
        """Return the layers whose losses are to be planned."""
        return [result.node for result in self.entries if result.with_loss]

    def take_losses(self, nodes: Collection[Node]) -> list[Result]:
        """Return the layers with a loss among some nodes; from now on they count as layers without one."""
        taken = [result for result in self.entries if result.with_loss and result.node in nodes]
        self._clear_losses(taken)
        return taken

    def take_next_loss(self) -> list[Result]:
        """Return the first layer with a loss, if there is one; from now on it counts as a layer without one."""
        taken = [result for result in self.entries if result.with_loss][:1]
        self._clear_losses(taken)
        return taken

    def _clear_losses(self, taken: list[Result]) -> None:
        self.entries = [
            dataclasses.replace(result, with_loss=False) if any(result is other for other in taken) else result
            for result in self.entries
        ]
