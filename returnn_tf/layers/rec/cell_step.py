"""One step of a recurrent cell as a layer of a loop: whatever can be computed before the loop is."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import HIDDEN_STATE
from returnn_tf.graph.layer import Node
from returnn_tf.graph.params.reuse import LayerAsParam
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.planned_cell import plan_cell, vectors_of
from returnn_tf.loops.aux_values import ALL_STEPS, STEP_INPUT
from returnn_tf.ops.cells.base import project
from returnn_tf.ops.cells.single_step import PreparedCell, prepare_cell
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class StepPlan:
    """A prepared cell, and the part of its input projection that is known before the loop.

    :param known: [batch, projected_dim] if equal in all steps, the bias included
    :param rest: (sources known only in the step, their rows of the input weights)
    """

    cell: PreparedCell
    known: Any = None
    rest: tuple[list[Node], Any] = ((), None)  # type: ignore[assignment]


#: Of a layer of a loop: the plan that it has prepared before the loop.
PREPARED: Aux[StepPlan] = Aux("made before the loop")


class CellStep:
    """One step of the cell of a layer, as a layer of a loop: the state is carried from step to step.

    :param layer: a `RecLayer` with a unit name
    :param data: its input
    """

    is_fused = False

    def __init__(self, ctx: PlanContext, layer: Any, data: Data) -> None:
        self._layer = layer
        self._perm, base = vectors_of(ctx, data)
        out = ctx.out_feature()
        self.output = base.with_axis(base.rank, out, feature=True)
        self.cell = plan_cell(ctx, layer, data, out, self.output, in_step=True)
        for index, part in enumerate(self.cell.state.parts):
            ctx.loop_state(str(index), part, lambda emit, i=index: self.cell.first_state(emit)[i])

    def before_loop(self, ctx: EmitContext) -> None:
        """Compute what the steps share, unless it depends on a layer of the loop."""
        specs = [spec for spec in ctx.node.params.values() if isinstance(spec, LayerAsParam)]
        if all(spec.node in ctx.lowering.values for spec in specs):
            cell = self._prepared(ctx)
            ctx.set_aux(ctx.node, PREPARED, self._with_known_input(ctx, cell) or StepPlan(cell))

    def _prepared(self, ctx: EmitContext) -> PreparedCell:
        entries: Any = 1
        for size in ctx.shape(self.output)[:-1]:
            entries = entries * size
        seed = ctx.seed("cell") if ctx.train else None
        return prepare_cell(self.cell.cell, self.cell.params(ctx), batch=entries, seed=seed)

    def _with_known_input(self, ctx: EmitContext, cell: PreparedCell) -> Optional[StepPlan]:
        """Multiply the input weights with the sources known for all steps, in one product."""
        sources = ctx.node.sources
        plain = all(
            source.output.rank == 2 and source.output.batch_axis == 0 and source.output.feature_axis == 1
            for source in sources
        )
        if cell.projection is None or not plain or self._layer.dropout:
            return None
        weights, bias = cell.projection
        known, row, rest, rows = None, 0, [], []
        for source in sources:
            size = source.output.dim or 0
            part = weights[row : row + size]
            row += size
            value = ctx.aux(source, ALL_STEPS)
            if value is None:
                value = ctx.lowering.values.get(source)
            if value is None:
                rest.append(source)
                rows.append(part)
                continue
            product = project(value, part, product_dtype=ctx.product_dtype)
            known = product if known is None else known + product
        if known is None:
            return None
        if bias is not None:
            known = known + bias
        if known.shape.rank == 2:
            return StepPlan(cell, known, (rest, _joined(rows)))
        ctx.set_aux(ctx.node, STEP_INPUT, known)
        return StepPlan(cell, None, (rest, _joined(rows)))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the cell for one frame."""
        y, state = self._step(ctx)
        for i, part in enumerate(state):
            ctx.set_loop_state(str(i), part)
        ctx.set_aux(ctx.node, HIDDEN_STATE, state)
        return y

    def _step(self, ctx: EmitContext) -> tuple[Any, tuple[Any, ...]]:
        """Return (output, new states) in the layout of the output."""
        plan = ctx.aux(ctx.node, PREPARED)
        plan = StepPlan(self._prepared(ctx)) if plan is None else plan
        layer, shape = self._layer, ctx.shape(ctx.output)
        is_flat = len(shape) == 2
        state = tuple(ctx.loop_state(str(i)) for i in range(self.cell.state.count))
        if not is_flat:
            state = self.cell.flat(state)
        index = ctx.lowering.loop_index
        known = ctx.lowering.loop_inputs.get((ctx.node, STEP_INPUT), plan.known)
        if known is None:
            x = transpose(layer.emit_input(ctx), self._perm)
            if not is_flat:
                x = tf.reshape(x, [-1] if layer.input.sparse_dim is not None else [-1, layer.input.dim])
            y, state = plan.cell.step(x, state, index)
        else:
            sources, weights = plan.rest
            z = known
            if sources:
                values = [ctx.value(source) for source in sources]
                x = values[0] if len(values) == 1 else tf.concat(values, axis=1)
                z = z + project(x, weights, product_dtype=ctx.product_dtype)
            y, state = plan.cell.step_projected(z, state, index)
        if is_flat:
            return y, state
        return tf.reshape(y, tf.stack(shape)), self.cell.laid_out(ctx, state)


def _joined(rows: list[Any]) -> Any:
    return rows[0] if len(rows) == 1 else tf.concat(rows, axis=0) if rows else None
