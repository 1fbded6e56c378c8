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
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class RecUnstackPlan(LayerPlan):
    """The plan of `RecUnstackLayer`.

    :param axis: the axis whose entries the steps get
    """

    axis: int


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
        _check_number_of_steps(ctx, data, data.dims[axis])
        if ctx.loop_dim is None:
            return RecUnstackPlan(data.without_axes([axis]), axis)
        if ctx.loop_dim in data.dims:
            raise LoopError("the source %s is a layer of the loop; name an outer one, e.g. 'base:encoder'." % data)
        time = None if data.time_axis == axis else data.time_axis
        return RecUnstackPlan(data.with_dim(axis, ctx.loop_dim).replace(time_axis=time), axis)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op before the loop, a slice in a step."""
        x = ctx.source()
        if self.node.output.rank == self.source.output.rank:
            return x
        return tf.gather(x, ctx.lowering.loop.index, axis=self.plan.axis)


def _check_number_of_steps(ctx: PlanContext, data: Data, dim: Dim) -> None:
    """Check that an axis has a frame for each step, as far as the sizes are known.

    :raises ConfigError: either the axis or the steps have a static size, or both have another one
    """
    steps = ctx.planner.iterated_dim
    if steps is not None and steps.size != dim.size:
        raise LoopError(
            "takes a frame of the axis %s of the source %s in each step, but the loop runs over %s. Name the axis with "
            "a frame for each step by the option 'axis', or use the source itself, which is the same in all steps."
            % (dim, data, steps)
        )


def unstacked_axis(ctx: PlanContext, data: Data, axis: Any) -> int:
    """Return the index of the axis with a frame for each step.

    :param axis: the option, None: time
    """
    found = data.time_axis if axis is None else ctx.axis(data, axis)
    if found is None:
        raise LoopError("the source %s has no time axis. Name one by the option 'axis'." % data)
    return found
