"""Access to the hidden state of recurrent layers by other layers, also of those in loops."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import HIDDEN_STATE, hidden_state_of, recurrent_node
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.frames.shape import expand_at, to_layout
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def carried_state_of(node: Node) -> Optional[HiddenState]:
    """Return the hidden state that a layer of a step carries to the next one, or None."""
    return hidden_state_of(node) if recurrent_node(node).loop_states else None


def depend_on_state(ctx: PlanContext, node: Node) -> None:
    """Declare that `emit` will use the hidden state of a layer; one of an enclosing loop must be planned first."""
    plan_state = recurrent_node(node).plan_state
    if plan_state is not None:
        ctx.depend(plan_state())


def state_values(ctx: EmitContext, node: Node) -> Any:
    """Return the tensors of the hidden state of a layer; in a loop those after this step, for ``prev:`` before it."""
    owner = recurrent_node(node)
    lowering = ctx.lowering
    if owner.plan_state is not None:
        last = owner.plan_state()
        if isinstance(last.layer, LastStateLayer):
            assert owner.hidden_state is not None
            return tf.split(ctx.value(last), owner.hidden_state.sizes, axis=last.output.feature_axis)
        return state_values(ctx, last)
    before = lowering.loop.owners_of_state.get(owner)
    if before is not None:
        return tuple(lowering.loop.inputs[before, key] for key in before.loop_states)
    if owner.loop_states and all((owner, key) in lowering.loop.next_states for key in owner.loop_states):
        return tuple(lowering.loop.next_states[owner, key] for key in owner.loop_states)
    values = ctx.aux(node, HIDDEN_STATE)
    return ctx.aux(owner, HIDDEN_STATE) if values is None else values


class LastStateLayer(Layer):
    """The hidden state of a cell of a loop after the last step of each sequence, taken from its states of all steps.

    :param cell: the layer in the step of the loop
    """

    class_name = "last state"
    is_connector = True

    def __init__(self, cell: Node) -> None:
        super().__init__()
        self._cell = cell

    def template(self, ctx: Any) -> Data:
        """Infer the output without the steps."""
        data = self.source.output
        assert data.time_axis is not None
        return data.without_axes([data.time_axis])

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the state; for a sequence without steps, the one before the first step."""
        data = self.source.output
        dim = data.time_dim
        assert dim is not None
        lens = ctx.lens(dim)
        last = last_frame(ctx, self.source)
        owner = recurrent_node(self._cell)
        inner = type(ctx)(owner, ctx.lowering)
        initial = [to_layout(start(inner), part, self._like(part)) for part, start in owner.loop_states.values()]
        first = tf.concat(initial, axis=ctx.output.feature_axis)
        if ctx.beam > 1:
            first = tf.repeat(first, ctx.beam, axis=ctx.output.batch_axis)
        if lens.shape.rank:
            lens = expand_at(lens, [i for i in range(ctx.output.rank) if i != ctx.output.batch_axis])
        return tf.where(lens > 0, last, first)

    def _like(self, part: Data) -> Data:
        """Return the layout of one of the concatenated tensors.

        :param part: its template in the loop
        """
        data = self.node.output
        assert data.feature_axis is not None
        return data.with_dim(data.feature_axis, part.dims[part.feature_axis or 0])


def last_frame(ctx: EmitContext, node: Node) -> Any:
    """Return the value of a node at the last frame of each sequence, 0 (false) for empty ones; without the time axis.

    A value without batch axis is that of the last frame of the longest sequence.

    Implemented as a sum over frames of which all but one are zero, so that empty sequences need no special case.
    """
    data = node.output
    x = ctx.value(node)
    axis = data.time_axis
    if axis is None:
        return x
    dim = data.dims[axis]
    last = ctx.lens(dim) - 1
    if last.shape.rank and data.batch_axis is None:
        last = tf.reduce_max(last)
    frames = expand_at(tf.range(ctx.size(dim)), [i for i in range(data.rank) if i != axis])
    if last.shape.rank:
        last = expand_at(last, [i for i in range(data.rank) if i != data.batch_axis])
    is_last = tf.broadcast_to(tf.equal(frames, last), tf.shape(x))
    if x.dtype.is_bool:
        return tf.reduce_any(tf.logical_and(is_last, x), axis=axis)
    return tf.reduce_sum(tf.where(is_last, x, tf.zeros([], x.dtype)), axis=axis)
