"""One step of a loop as ops: from what it reads to the values of its layers and the states of the next step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.loops.plan import LoopPlan


class StepEmitter:
    """Emits the layers of one step.

    :param outer: has the values from outside of the loop
    :param index: of the step, int32 scalar
    :param inputs: what the step reads: by node the slices and the values of ``prev:``, by (layer, key) the states
    """

    def __init__(self, loop: LoopPlan, outer: Lowering, index: Any, inputs: Mapping[Any, Any]) -> None:
        self._prevs = {prev.node: prev for prev in loop.prevs}
        #: The values of this step.
        self.lowering = lowering = outer.child()
        lowering.loop.continues = outer.loop.continues
        lowering.loop.index = lowering.dims.step_indices[loop.loop_dim] = index
        lowering.loop.inputs.update(inputs)
        owners = {prev.node: prev.state_of for prev in loop.prevs if prev.state_of is not None}
        lowering.loop.owners_of_state.update(owners)

    def give(self, values: Mapping[Node, Any]) -> None:
        """Set the values of layers that are known, such as labels which a search outside of the graph decides on."""
        self.lowering.values.outputs.update(values)

    def emit(self, nodes: Iterable[Node]) -> None:
        """Emit layers, in this order; those whose values are known are left out.

        :raises ValueError: one has an effect besides its value
        """
        for node in nodes:
            if node not in self.lowering.values.outputs:
                emit_node(self.lowering, node)
        if self.lowering.after_step.updates:
            raise ValueError("a layer in the loop updates variables in each step, which is not supported")

    def value(self, node: Node) -> Any:
        """Return the value of a layer in this step."""
        return self.lowering.values.outputs[node]

    def carried(self, key: Any) -> Any:
        """Return the value for the next step.

        :param key: a node of ``prev:``, or (layer, key of a state)
        """
        prev = self._prevs.get(key)
        if prev is None:
            return self.lowering.loop.next_states[key]
        return prev.of_step(EmitContext(prev.node, self.lowering), self.value(prev.of))
