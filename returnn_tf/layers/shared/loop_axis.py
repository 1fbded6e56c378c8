"""The frame axis of a layer with memory: a time axis, all steps of a loop at once, or a single step."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
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
