"""The frame axis of layers that need all frames: a time axis, all steps of a loop at once, or a single step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_TIME = ("t", "time", "t?", "time?")


def frames_of(ctx: PlanContext, data: Data, desc: Any = "T") -> tuple[Data, Optional[int]]:
    """Return the template with a frame axis, and that axis; None in a step of a loop, where the layer carries a state.

    In a loop, "T" without a time axis, and dims or tags that the source lacks, refer to the steps. A value equal in all
    steps gets their axis in front.

    :raises ConfigError: no such axis, and not inside a loop
    """
    if not means_steps(ctx, data, desc):
        return data, ctx.axis(data, desc)
    if ctx.loop_dim is None:
        return data, None
    data = with_steps(ctx, data)
    return data, data.dims.index(ctx.loop_dim)


def means_steps(ctx: PlanContext, data: Data, desc: Any) -> bool:
    """Return whether an axis description means the steps of the enclosing loop, see `frames_of`."""
    tag = isinstance(desc, str) and (desc.lower() in _TIME or desc.lower().startswith(("stag:", "tag:")))
    in_loop = ctx.in_step or ctx.loop_dim is not None
    return in_loop and (tag or isinstance(desc, Dim)) and not ctx.has_axis(data, desc)


def check_single_step(ctx: PlanContext, desc: Any) -> None:
    """Check the option ``axis`` of a layer which only computes one step of a loop; None: it is not given.

    :raises ConfigError: it names an axis of the source
    """
    if desc is not None and not means_steps(ctx, ctx.single_source(), desc):
        raise ctx.error(
            "computes one step of a loop, so axis must be single_step_dim or the dim of its steps, not %s. Put the "
            "layer into the unit of a 'rec' layer." % (desc,)
        )


def with_steps(ctx: PlanContext, data: Data) -> Data:
    """Return the template with the axis of all steps of the enclosing loop, in front if it is equal in all of them."""
    assert ctx.loop_dim is not None
    return data if ctx.loop_dim in data.dims else data.with_axis(0, ctx.loop_dim)


def with_frames(ctx: EmitContext, x: Any, data: Data, frames: Data) -> Any:
    """Add the axis of steps that `frames_of` may have put in front.

    :param data: template of ``x``
    """
    if data.rank == frames.rank:
        return x
    return tf.repeat(x[None], ctx.size(frames.dims[0]), axis=0)


def with_steps_of(ctx: PlanContext, data: Data, others: Sequence[Any]) -> Data:
    """Return the template with the axis of all steps of the enclosing loop, if one of the other layers has it.

    :param others: values of options: layers, numbers or None
    """
    varies = any(isinstance(node, Node) and ctx.loop_dim in node.output.dims for node in others)
    return with_steps(ctx, data) if varies else data


def check_lengths_of(ctx: PlanContext, data: Data, axis: int) -> None:
    """Check that a layer can mask the frames of an axis, as far as it is known before the ops are built.

    :raises ConfigError: the lengths differ by sequence, and the data has no batch axis
    """
    dim = data.dims[axis]
    if data.batch_axis is None and _basis(dim) & _dims_by_sequence(ctx):
        raise ctx.error(
            "the source %s has no batch axis, but each sequence has its own length in %s. First combine it "
            "with a source that has one." % (data, dim),
        )


def _basis(dim: Dim) -> set[Dim]:
    """Return the dims that a dim follows from; itself, if it is no expression."""
    if dim.expr is None:
        return {dim}
    return set().union(*(_basis(part) for part in dim.expr.args if isinstance(part, Dim)))


def _dims_by_sequence(ctx: PlanContext) -> set[Dim]:
    """Return the dynamic axes of the data keys that the layer depends on."""
    inputs = [node.output for node in ctx.node.all_deps() if node.extern_key is not None]
    return {dim for data in inputs if data.batch_axis is not None for dim in data.dims if dim.is_dynamic()}


def refuse_in_step(ctx: PlanContext) -> None:
    """Check that the layer is computed once for each batch, on all steps of the loops around it.

    :raises ConfigError: it is in the step of a loop
    """
    if ctx.in_step:
        raise ctx.error(
            "can't run step by step in a loop, as it takes the values of all steps at once. Let no 'prev:' depend on "
            "it, and no optimize_move_layers_out = False keep it in the loop; or put it outside, on the output of the "
            "loop or a part of it."
        )
