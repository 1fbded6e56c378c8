"""The results of a network: values of layers, and losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from returnn_tf.compiler.planning.names import Names
from returnn_tf.compiler.planning.parse import LayerSpec, has_loss
from returnn_tf.compiler.planning.plan_loss import plan_loss
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.node import Node


@dataclasses.dataclass(frozen=True)
class InnerResult:
    """A layer inside of a layer in the step of a loop, of which the values for all steps are a result.

    :param is_output: whether it is one by is_output_layer
    :param with_loss: whether it has a loss
    """

    spec: LayerSpec
    node: Node
    is_output: bool
    with_loss: bool


class Results(Names):
    """A level of a network that collects the results."""

    def _counts_loss(self, spec: LayerSpec) -> bool:
        """Return whether the loss of a layer is computed: in a loop only to train or evaluate."""
        if self.in_step or self.loop_dim is not None:
            return self.state.loop_losses and not self.search and has_loss(spec, False)
        return has_loss(spec, self.search)

    def register(self, spec: LayerSpec, node: Node, *, is_result: bool) -> None:
        """Register the loss of a planned layer, and its value if it is a result."""
        is_output = is_result or bool(spec.options.get("is_output_layer"))
        self.add_result(spec, node, is_output=is_output, with_loss=self._counts_loss(spec))

    def add_result(self, spec: LayerSpec, node: Node, *, is_output: bool, with_loss: bool) -> None:
        """Add a layer whose value, or whose loss, is a result of the network."""
        if self.step_results is not None:
            if is_output or with_loss:
                self.step_results.append(InnerResult(spec, node, is_output, with_loss))
            return
        if is_output:
            self.state.outputs[spec.path] = node
        if with_loss:
            self.state.open_losses.append((self, node, spec))

    def hide_results(self, nodes: Sequence[Node]) -> None:
        """Implement `Builder.hide_results`."""
        for path in [path for path, node in self.state.outputs.items() if node in nodes]:
            del self.state.outputs[path]
        if self.step_results is not None:
            self.step_results[:] = [result for result in self.step_results if result.node not in nodes]

    def layers_with_loss(self, start: int) -> list[Node]:
        """Implement `Builder.layers_with_loss`."""
        of_step = [result.node for result in self.step_results or () if result.with_loss]
        nodes = set(self.sink[start:])
        return [node for node in [*(node for _, node, _ in self.state.open_losses), *of_step] if node in nodes]

    def take_losses(self, start: int) -> list[LossNode]:
        """Implement `Builder.take_losses`; the targets may add further layers, with further losses."""
        found: list[LossNode] = []
        while True:
            nodes = set(self.sink[start:])
            taken = [entry for entry in self.state.open_losses if entry[1] in nodes]
            if not taken:
                return found
            self.state.open_losses = [entry for entry in self.state.open_losses if entry[1] not in nodes]
            found += [plan_loss(*entry, train=self.state.train) for entry in taken]

    def add_loss(self, loss: LossNode) -> None:
        """Implement `Builder.add_loss`."""
        self.state.losses.append(loss)
