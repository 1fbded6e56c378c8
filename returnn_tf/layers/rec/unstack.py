"""`rec_unstack`: the frames of an outer layer, one in each step of the loop."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.errors import LoopError
from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.frames.pad import fit_axis
from returnn_tf.ops.frames.shape import size_of
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.dim_binding import always_differ
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class RecUnstackPlan(LayerPlan):
    """The plan of `RecUnstackLayer`.

    :param axis: the axis whose entries the steps get
    :param steps: the dim of the steps, if it is known before the loop
    """

    axis: int
    steps: Optional[Dim]


@register_layer("rec_unstack")
class RecUnstackLayer(Planned[RecUnstackPlan]):
    """``y_t = x[t]`` in step t of a loop, along one axis of the source.

    In a loop without a source and without a layer "end", this axis determines the number of steps.

    Lengths: those of the axis are the steps of the loop.

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "unit": {
                "x": {"class": "rec_unstack", "from": "base:data", "axis": "T", "declare_rec_time": True},
                "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": ["x", "prev:output"]}}},
            "output": {"class": "copy", "from": "loop"}}
    """

    unstacks_frames = True
    axis: Optional[Axis] = option(None, help="axis of the source with a frame for each step (default: time)")
    declare_rec_time: bool = option(False, help="this axis determines the number of steps of the loop")

    def template(self, ctx: PlanContext) -> RecUnstackPlan:
        """Infer the output without the axis in a step."""
        data = ctx.single_source()
        if not ctx.in_step and ctx.loop_dim is None:
            raise LoopError("takes the frame of a step: put it into the unit of a 'rec' layer.")
        axis = unstacked_axis(ctx, data, self.axis)
        steps = _number_of_steps(ctx, data, data.dims[axis])
        if ctx.loop_dim is None:
            return RecUnstackPlan(data.without_axes([axis]), axis, steps)
        if ctx.loop_dim in data.dims:
            raise LoopError("the source %s is a layer of the loop; name an outer one, e.g. 'base:encoder'." % data)
        time = None if data.time_axis == axis else data.time_axis
        return RecUnstackPlan(data.with_dim(axis, ctx.loop_dim).replace(time_axis=time), axis, steps)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op before the loop, a slice in a step."""
        x, axis, index = ctx.source(), self.plan.axis, ctx.lowering.loop.index
        dim, steps = self.source.output.dims[axis], self.plan.steps
        moved = self.node.output.rank == self.source.output.rank
        if steps is not None and steps is not dim:
            x = ctx.with_same_lens(x, dim, steps, "The loop takes a frame of it in each step.")
            if moved:
                return fit_axis(x, axis, ctx.size(steps))
            index = tf.minimum(index, size_of(x, axis) - 1)  # its padding may be shorter
        return x if moved else tf.gather(x, index, axis=axis)


def _number_of_steps(ctx: PlanContext, data: Data, dim: Dim) -> Optional[Dim]:
    """Return the dim of the steps, if it is known before the loop.

    :param dim: of the axis with a frame for each step
    :raises ConfigError: it has another number of frames
    """
    steps = ctx.planner.iterated_dim
    if steps is not None and (steps.size != dim.size or always_differ(dim, steps)):
        raise LoopError(
            "takes a frame of the axis %s of the source %s in each step, but the loop runs over %s. Name the axis with "
            "a frame for each step by the option 'axis', or use the source itself, which is the same in all steps."
            % (dim, data, steps)
        )
    return steps


def unstacked_axis(ctx: PlanContext, data: Data, axis: Any) -> int:
    """Return the index of the axis with a frame for each step.

    :param axis: the option, None: time
    """
    found = data.time_axis if axis is None else ctx.axis(data, axis)
    if found is None:
        raise LoopError("the source %s has no time axis. Name one by the option 'axis'." % data)
    return found
