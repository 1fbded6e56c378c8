"""The inputs of a loop from outside: parameters, arrays read step by step, values once per hypothesis of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.config.errors import LoopError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.reuse import LayerAsParam
from returnn_tf.graph.rounded_variable import RoundedVariable
from returnn_tf.loops.aux_values import PER_SEQUENCE, PerSequence
from returnn_tf.loops.hypotheses import resize_beam
from returnn_tf.loops.packed import pack_factors
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.util.lazy_tf import tf


def max_steps(loop: LoopPlan, ctx: EmitContext) -> Any:
    """Return the maximum number of steps, int32 scalar."""
    if loop.ending.max_steps is not None:
        return loop.ending.max_steps(ctx)
    # One step past the end of the source is tried, and fails, so that the end is never overlooked.
    return ctx.size(loop.loop_dim) if loop.source_dim is None else ctx.size(loop.source_dim) + 1


def read_params(ctx: EmitContext, nodes: Sequence[Node], *, native: bool) -> None:
    """Read the parameters of layers, including those in inner loops, and prepare them for products in a search.

    :param native: whether this is a search by native ops, whose steps are so short that the ops of TensorFlow count.
        Steps then read variables by themselves, by one op each: a tensor from outside takes three in each step.
    """
    for node in nodes:
        inner = EmitContext(node, ctx.lowering)
        for name, spec in node.params.items():
            if isinstance(spec, LayerAsParam) or (native and _is_read_as_stored(inner, name)):
                continue
            if inner.rounded_matrix(name) is None:
                inner.param(name)
        pack_factors(inner)
        read_params(ctx, node.inner, native=native)


def _is_read_as_stored(ctx: EmitContext, name: str) -> bool:
    """Return whether reading a parameter computes nothing, as its custom function or floats of smaller numbers do."""
    spec = ctx.node.params[name]
    if not isinstance(spec, ParamSpec):
        return False
    return ctx.has_rounded_matrix(name) or not isinstance(ctx.lowering.params.variables[spec.name], RoundedVariable)


def step_array(x: Any, steps: Any) -> Any:
    """Return an array to be read step by step."""
    return tf.TensorArray(x.dtype, size=steps, element_shape=x.shape[1:]).unstack(x)


def in_beam(lowering: Lowering, nodes: list[Node], beam: int, *, stays: bool, native: bool) -> Lowering:
    """Return the values from outside as the loop sees them: once per hypothesis.

    :param stays: the number of hypotheses is the same at all times
    :param native: whether products with values of a sequence are native ops for a single hypothesis, too; TensorFlow's
        einsum takes many times as long for it
    :raises LoopError: the batch axis of a value has not one entry per sequence
    """
    inner = lowering.child()
    if inner.step is not None:
        inner.step = tf.convert_to_tensor(inner.step)  # read once, not in each step
    if beam == 1:
        for node in nodes if native and stays else ():
            if node.output.batch_axis is not None and node in inner.values.outputs:
                inner.values.set_aux(node, PER_SEQUENCE, PerSequence(inner.values.outputs[node], beam))
        return inner
    batch = lowering.dims.batch_size
    for node in nodes:
        axis = node.output.batch_axis
        if axis is not None and node in inner.values.outputs:
            dim = node.output.dims[axis]
            if dim.expr is not None or dim in lowering.dims.sizes:
                raise LoopError(
                    "Layer %r is %s: another axis is merged into its batch axis, so it can't be repeated for the "
                    "hypotheses of a search. Split it again before the loop, e.g. by split_batch_time or "
                    "unflatten_batch." % (node.path, node.output)
                )
            if stays:
                inner.values.set_aux(node, PER_SEQUENCE, PerSequence(inner.values.outputs[node], beam))
            inner.values.outputs[node] = tf.repeat(inner.values.outputs[node], beam, axis=axis)
    for node in nodes:
        if node in inner.values.aux:
            inner.values.aux[node] = {aux: value for aux, value in inner.values.aux[node].items() if aux.enters_search}
    inner.values.change_aux(nodes, lambda value, axis: tf.repeat(value, beam, axis=axis))
    resize_beam(inner, 1, beam, batch)
    return inner
