"""The computation of a `rec` layer: a loop, one step of a cell in an enclosing loop, or a cell over frames or once."""

from __future__ import annotations

from typing import Any, Optional, Protocol

from returnn_tf.config.errors import OptionError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.cell_once import CellOnce
from returnn_tf.layers.rec.cell_over_frames import CellOverFrames
from returnn_tf.layers.rec.cell_step import CellStep
from returnn_tf.layers.rec.planned_cell import PlannedCell
from returnn_tf.layers.shared.loop_axis import means_steps
from returnn_tf.tensor import Data, single_step_dim


class RecRun(Protocol):
    """The computation of a `RecLayer`."""

    @property
    def output(self) -> Data:
        """Return the template."""

    @property
    def cell(self) -> Optional[PlannedCell]:
        """Return the cell; None for a step network."""

    @property
    def is_fused(self) -> bool:
        """Return whether it computes all steps of a loop at once."""

    def emit(self, ctx: EmitContext) -> Any:
        """Return the value of the layer."""

    def before_loop(self, ctx: EmitContext) -> None:
        """Compute what all steps of an enclosing loop share."""


class StepNetworkRun:
    """A network as unit: the compiler plans the loop, and this layer holds its output."""

    cell: Optional[PlannedCell] = None
    is_fused = False

    def __init__(self, ctx: PlanContext) -> None:
        self._inner = ctx.depend(ctx.planner.step_network(ctx.node))
        self.output = self._inner.output

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op."""
        return ctx.value(self._inner)

    def before_loop(self, ctx: EmitContext) -> None:
        """Do nothing: it is an inner loop."""


def plan_cell_run(ctx: PlanContext, layer: Any, data: Data) -> RecRun:
    """Plan what a named unit computes.

    :param layer: a `RecLayer`
    :param data: its input
    """
    if not is_single_step(ctx, layer, data):
        return CellOverFrames(ctx, layer, data)
    if layer.direction == -1:
        raise OptionError("direction -1 reverses a sequence, but this is a single step. Remove the option.")
    if layer.state is not None:
        return CellOnce(ctx, layer, data)
    if ctx.loop_dim is not None:
        return CellOverFrames(ctx, layer, data, steps=True)
    return CellStep(ctx, layer, data) if ctx.in_step else CellOnce(ctx, layer, data)


def is_single_step(ctx: PlanContext, layer: Any, data: Data) -> bool:
    """Return whether a cell does not iterate over an axis of its source: in a loop it does one step in each of its."""
    if layer.state is not None or layer.axis is single_step_dim:
        return True
    if layer.axis is None:
        return data.time_axis is None or layer.single_step
    return means_steps(ctx, data, layer.axis)
