"""The frames which a layer with a memory runs over: a time axis, the steps of a loop all at once, or one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Tuple

from returnn_tf.layers.loop_axis import step_or_axis
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext
    from returnn_tf.layers.plan_context import PlanContext


def frames_of(ctx: "PlanContext", data: Data, desc: Any = "T") -> Tuple[Data, Optional[int]]:
    """The template with an axis of frames, and that axis; None in a step of a loop, where the layer carries a state.

    What is the same in all steps of a loop gets the axis of the steps in front if it has no other frames.

    :raises ConfigError: there is no such axis, and this is not inside of a loop
    """
    if ctx.loop_dim is not None and ctx.loop_dim not in data.dims and not ctx.axes(data, desc):
        data = data.with_axis(0, ctx.loop_dim)
    if not ctx.axes(data, desc):
        if ctx.loop_dim is not None:
            return data, data.dims.index(ctx.loop_dim)
        if ctx.in_step:
            return data, None
    return data, step_or_axis(ctx, data, desc)


def with_frames(ctx: "EmitContext", x: Any, data: Data, frames: Data) -> Any:
    """A tensor with the axis of the steps that `frames_of` may have put in front.

    :param data: template of ``x``
    """
    if data.rank == frames.rank:
        return x
    return tf.repeat(x[None], ctx.size(frames.dims[0]), axis=0)
