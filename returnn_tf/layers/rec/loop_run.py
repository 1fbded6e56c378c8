"""Runs the layers of a step in a loop: `tf.while_loop` with the carried values, slices of what is known, and
results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from returnn_tf.layers.base import Layer
from returnn_tf.layers.emit_node import emit_node
from returnn_tf.layers.node import Node
from returnn_tf.layers.rec.loop_nodes import InitialOutput
from returnn_tf.ops.shape import move_axis
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext


class LoopRunLayer(Layer):
    """The loop of a step network.

    :param loop_dim: the axis of the steps
    """

    class_name = "loop"

    def __init__(self, loop_dim: Dim) -> None:
        super().__init__()
        self.loop_dim = loop_dim
        #: (node for ``prev:x`` in the step, node of x, its initial output)
        self.prevs: List[Tuple[Node, Node, InitialOutput]] = []
        #: (value for all steps, node for its slice in the step)
        self.slices: List[Tuple[Node, Node]] = []
        #: nodes of the step whose values of all steps are wanted
        self.collected: List[Node] = []

    def emit(self, ctx: "EmitContext") -> Any:
        """The number of steps; the collected values are further outputs by path."""
        steps = ctx.size(self.loop_dim)
        arrays = [self._unstacked(ctx, outer, steps) for outer, _ in self.slices]
        states = self._initial_states(ctx)
        results = [self._result_array(node, steps) for node in self.collected]
        shapes = [state.shape for state in states]

        def body(i: Any, carried: Any, collected: Any) -> Any:
            values, new_states = self._step(ctx, i, arrays, carried)
            for state, shape in zip(new_states, shapes):
                state.set_shape(shape)
            written = [array.write(i, values[node]) for array, node in zip(collected, self.collected)]
            return i + 1, new_states, written

        count, _, results = tf.while_loop(
            lambda i, *_: i < steps, body, (tf.constant(0), states, results), maximum_iterations=steps
        )
        for node, array in zip(self.collected, results):
            value = array.stack()
            value.set_shape([None, *node.output.static_shape])
            ctx.set_sub_output(node.path, value)
        return count

    def _unstacked(self, ctx: "EmitContext", outer: Node, steps: Any) -> Any:
        data = outer.output
        x = move_axis(ctx.value(outer), data.rank, data.axes_of(self.loop_dim)[0], 0)
        return tf.TensorArray(x.dtype, size=steps, element_shape=x.shape[1:]).unstack(x)

    def _initial_states(self, ctx: "EmitContext") -> List[Any]:
        states = []
        for prev, _, initial in self.prevs:
            states.append(_shaped(initial.emit(ctx, prev.output), prev.output))
        for node in self.node.inner:
            for data, initial in node.loop_states.values():
                states.append(_shaped(initial(type(ctx)(node, ctx.lowering)), data))
        return states

    def _step(self, ctx: "EmitContext", i: Any, arrays: List[Any], carried: Any) -> Tuple[Dict[Node, Any], List[Any]]:
        """(values of all layers, the states for the next step)."""
        state = ctx.lowering.child()
        state.loop_index = i
        for (_, inner), array in zip(self.slices, arrays):
            state.given[inner] = array.read(i)
        rest = list(carried)
        for prev, _, _ in self.prevs:
            state.given[prev] = rest.pop(0)
        keys = [(node, key) for node in self.node.inner for key in node.loop_states]
        for name in keys:
            state.given[name] = rest.pop(0)
        for node in self.node.inner:
            emit_node(state, node)
        if state.updates:
            raise ValueError("a layer in the loop updates variables in each step, which is not supported")
        new_states = [state.values[of] for _, of, _ in self.prevs] + [state.next_states[name] for name in keys]
        return state.values, new_states

    def _result_array(self, node: Node, steps: Any) -> Any:
        return tf.TensorArray(node.output.dtype, size=steps, element_shape=node.output.static_shape)


def _shaped(x: Any, data: Data) -> Any:
    x.set_shape(data.static_shape)
    return x
