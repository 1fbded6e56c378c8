"""The inputs of a loop: parameters, arrays read step by step, and values once per hypothesis of a search."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import LayerAsParam, Node
from returnn_tf.layers.loops.hypotheses import PER_SEQUENCE, PerSequence, resize_beam
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def read_params(ctx: EmitContext, nodes: list[Node]) -> None:
    """Read the parameters of layers, including those in inner loops."""
    for node in nodes:
        inner = type(ctx)(node, ctx.lowering)
        for name, spec in node.params.items():
            if not isinstance(spec, LayerAsParam):
                inner.param(name)
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
    x.set_shape(data.static_shape)
    return x
