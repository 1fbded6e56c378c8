"""The inputs of a loop: parameters, arrays read step by step, first states, values once per hypothesis of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import LayerAsParam, Node
from returnn_tf.loops.aux_values import PER_SEQUENCE, PerSequence
from returnn_tf.loops.hypotheses import resize_beam
from returnn_tf.loops.in_place import InPlace
from returnn_tf.loops.initial_output import InitialOutput
from returnn_tf.loops.packed import pack_factors
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def max_steps(loop: LoopPlan, ctx: EmitContext) -> Any:
    """Return the maximum number of steps, int32 scalar."""
    if loop.ending.max_steps is not None:
        return loop.ending.max_steps(ctx)
    # One step past the end of the source is tried, and fails, so that the end is never overlooked.
    return ctx.size(loop.loop_dim) if loop.source_dim is None else ctx.size(loop.source_dim) + 1


def state_keys(nodes: Iterable[Node]) -> list[tuple[Node, str]]:
    """Return the states that layers carry from step to step."""
    return [(node, key) for node in nodes for key in node.loop_states]


def initial_states(
    prevs: Iterable[tuple[Node, Node, InitialOutput]], ctx: EmitContext, keys: Iterable[tuple[Node, str]]
) -> dict[Any, Any]:
    """Return what a step gets in the first step: the values of ``prev:`` by their nodes, and states by their keys.

    :param prevs: see `LoopPlan`
    :param ctx: of the node that runs the loop
    :param keys: see `state_keys`
    """
    states: dict[Any, Any] = {}
    for prev, _, initial in prevs:
        states[prev] = shaped(initial.emit(ctx, prev.output), prev.output)
    for node, key in keys:
        data, start = node.loop_states[key]
        states[node, key] = shaped(start(EmitContext(node, ctx.lowering)), data)
    return states


def begin_step(loop: LoopPlan, outer: Lowering, index: Any, inputs: Mapping[Any, Any]) -> Lowering:
    """Return a lowering for the layers of one step.

    :param outer: has the values from outside
    :param index: of the step, int32 scalar
    :param inputs: what the step reads: by node the slices and the values of ``prev:``, by key the states
    """
    state = outer.child()
    state.continues_in_step = outer.continues_in_step
    state.loop_index = state.loop_indices[loop.loop_dim] = index
    state.loop_inputs.update(inputs)
    return state


def check_step(state: Lowering) -> None:
    """Check that the layers of a step have no effect but their values."""
    if state.updates:
        raise ValueError("a layer in the loop updates variables in each step, which is not supported")


def read_params(ctx: EmitContext, nodes: Sequence[Node]) -> None:
    """Read the parameters of layers, including those in inner loops, and prepare them for products in a search."""
    for node in nodes:
        inner = type(ctx)(node, ctx.lowering)
        for name, spec in node.params.items():
            if not isinstance(spec, LayerAsParam):
                inner.param(name)
        pack_factors(inner)
        read_params(ctx, node.inner)


def step_array(x: Any, steps: Any) -> Any:
    """Return an array to be read step by step."""
    return tf.TensorArray(x.dtype, size=steps, element_shape=x.shape[1:]).unstack(x)


def in_beam(lowering: Lowering, nodes: list[Node], beam: int, *, stays: bool) -> Lowering:
    """Return the values from outside as the loop sees them: once per hypothesis.

    :param stays: the number of hypotheses is the same at all times
    """
    state = lowering.child()
    if state.step is not None:
        state.step = tf.convert_to_tensor(state.step)  # read once, not in each step
    if beam == 1:
        return state
    batch = lowering.batch_size
    for node in nodes:
        axis = node.output.batch_axis
        if axis is not None and node in state.values:
            if stays:
                state.set_aux(node, PER_SEQUENCE, PerSequence(state.values[node], beam))
            state.values[node] = tf.repeat(state.values[node], beam, axis=axis)
    for node in nodes:
        if node in state.aux:
            state.aux[node] = {aux: value for aux, value in state.aux[node].items() if aux.enters_search}
    state.change_aux(nodes, lambda value, axis: tf.repeat(value, beam, axis=axis))
    resize_beam(state, 1, beam, batch)
    return state


def shaped(x: Any, data: Data) -> Any:
    """Return the tensor with all sizes that its template knows."""
    if not isinstance(x, InPlace):
        x.set_shape(data.static_shape)
    return x
