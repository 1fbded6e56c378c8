"""`cum_concat`: the history of all frames so far as an additional axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.attention.history import count_step, extended, picked_before
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import frames_of, with_frames
from returnn_tf.ops.dense.attention import empty_history
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class CumConcatPlan(LayerPlan):
    """The plan of `CumConcatLayer`.

    :param frames: the input, with the axis of the steps of a loop
    :param at: where the history is in the output
    :param perm: order of the axes of ``frames`` in the output
    :param over: the dim of the frames; None: a step of a loop
    :param steps: the dim of the steps so far
    """

    frames: Data
    at: int
    perm: Sequence[int]
    over: Optional[Dim]
    steps: Dim


@register_layer("cum_concat")
class CumConcatLayer(ConcatInputLayer, Planned[CumConcatPlan]):
    """``y[t] = x[0..t]``: all frames up to the current one, as a new axis with length t + 1 in frame t.

    In a step of a loop the history grows by one frame. For all frames at once it is stored once, not once per frame:
    the output has the new axis in place of the frames, and its lengths vary with the frames. A layer that combines it
    with the frames, such as `dot` with a query, computes the same values as step by step.

    No parameters. Lengths: t + 1 in frame t for the new axis, which comes after the batch axis.

    Example::

        from returnn_tf.tensor import SpatialDim
        history = SpatialDim("history")
        network = {
            "all": {"class": "cum_concat", "out_spatial_dim": history, "from": "data"},
            "energy": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": history, "from": ["data", "all"]},
            "weights": {"class": "softmax_over_spatial", "axis": history, "from": "energy"},
            "output": {"class": "dot", "red1": history, "red2": history, "var1": "T", "var2": "F",
                       "from": ["weights", "all"]}}
    """

    has_memory = True
    computes_all_steps = True
    out_spatial_dim: Optional[Dim] = option(None, help="the new axis")
    axis: Axis = option("T", help="frame axis; in a loop the steps if the source has no such axis")

    history_grows = True

    def template(self, ctx: PlanContext) -> CumConcatPlan:
        """Infer the output: the frames replaced by the history."""
        data = self.input_template(ctx)
        frames, axis = frames_of(ctx, data, self.axis)
        if axis is not None and axis in (frames.batch_axis, frames.feature_axis):
            raise ctx.error("a history cannot run along the batch or the feature axis.")
        rest = frames if axis is None else frames.without_axes([axis])
        batch = rest.batch_axis
        order = [*([] if batch is None else [batch]), *(i for i in range(rest.rank) if i != batch)]
        at = 0 if batch is None else 1
        kept = [i for i in range(frames.rank) if i != axis]
        perm = [kept[i] for i in order]
        if axis is not None:
            perm.insert(at, axis)
        over = None if axis is None else frames.dims[axis]
        history = ctx.bind(self.out_spatial_dim, ctx.new_spatial(None, "rec-history"))
        rest = rest.permuted(order).replace(vocab=None)
        output = rest.with_axis(at, history, time=rest.time_axis is None)
        if axis is None:
            # A separate dim, since the state has one frame less.
            state = output.with_dim(at, ctx.new_spatial(None, "history"))
            ctx.loop_state("history", state, lambda emit: self._empty(emit, state))
        return CumConcatPlan(output, frames=frames, at=at, perm=perm, over=over, steps=history)

    def _empty(self, ctx: EmitContext, state: Data) -> Any:
        sizes = [0 if i == self.plan.at else ctx.size(d) for i, d in enumerate(state.dims)]
        return empty_history(sizes, self.plan.at, state.dtype)

    @property
    def history(self) -> Optional[Dim]:
        """The dim of the steps so far."""
        return self.plan.steps if isinstance(self.node.found, CumConcatPlan) else None

    def emit(self, ctx: EmitContext) -> Any:
        """Emit concatenation with the history in a step, else a transposition."""
        x = transpose(with_frames(ctx, self.emit_input(ctx), self.input, self.plan.frames), self.plan.perm)
        if self.plan.over is not None:
            ctx.define_running(self.plan.steps, self.plan.over)
            return x
        history = extended(ctx, "history", x, self.plan.at)
        before, size = picked_before(ctx), tf.shape(history)[self.plan.at]
        ctx.define_lens(self.plan.steps, size if before is None else before + 1, size)
        count_step(ctx)
        return history
