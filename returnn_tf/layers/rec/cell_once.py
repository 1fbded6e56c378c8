"""A single step of a recurrent cell, on each vector of its source."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import HIDDEN_STATE
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.planned_cell import plan_cell, vectors_of
from returnn_tf.ops.cells.single_step import prepare_cell
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class CellOnce:
    """One step of the cell of a layer that carries no state: all axes but the features count as batch.

    The state before the step is ``initial_state``, or ``state``, which a loop computes again in each step.

    :param layer: a `RecLayer` with a unit name
    :param data: its input
    """

    is_fused = False

    def __init__(self, ctx: PlanContext, layer: Any, data: Data) -> None:
        self._layer = layer
        self._perm, base = vectors_of(ctx, data)
        out = ctx.out_feature()
        self.output = base.with_axis(base.rank, out, feature=True)
        self.cell = plan_cell(ctx, layer, data, out, self.output)

    def before_loop(self, ctx: EmitContext) -> None:
        """Do nothing: the state before the step may depend on the loop."""

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the cell for one frame, whose output has the axes of the source."""
        layer, cell = self._layer, self.cell.cell
        x = layer.emit_input(ctx)
        if layer.input.sparse_dim is None:
            x = tf.reshape(transpose(x, self._perm), [-1, layer.input.dim])
        else:
            x = tf.reshape(x, [-1])
        state = self.cell.flat(self.cell.first_state(ctx))
        seed = ctx.seed("cell") if ctx.train else None
        prepared = prepare_cell(cell, self.cell.params(ctx), batch=tf.shape(x)[0], seed=seed)
        y, state = prepared.step(x, state, ctx.lowering.loop_index)
        state = self.cell.laid_out(ctx, state)
        y = tf.reshape(y, tf.stack(ctx.shape(self.output)))
        if layer.back_prop is False:
            y, state = tf.stop_gradient(y), tuple(tf.stop_gradient(part) for part in state)
        ctx.set_aux(ctx.node, HIDDEN_STATE, state)
        self.cell.keep(ctx, state)
        return y
