"""One step of a recurrent cell as a layer of a loop: what can be made before the loop is made before it."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Tuple

from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.node import LayerAsParam, Node
from returnn_tf.ops.cells.base import project
from returnn_tf.ops.cells.single_step import PreparedCell, prepare_cell
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class StepPlan:
    """A cell, prepared, and the part of its input projection that is known before the loop.

    :param known: [batch, gates * n] if it is the same in all steps, the bias included
    :param rest: (sources that are only known in the step, their rows of the input weights)
    """

    cell: PreparedCell
    known: Any = None
    rest: Tuple[List[Node], Any] = ((), None)  # type: ignore[assignment]


#: Of a layer of a loop: what it has made before the loop.
PREPARED: Aux[StepPlan] = Aux("made before the loop")
#: Of a slice of a value that is known for all steps: that value, [steps, ...].
ALL_STEPS: Aux[Any] = Aux("all steps")
#: Of a layer of a loop: a tensor [steps, ...] made before the loop. `emit` gets the current step of it as a loop input.
STEP_INPUT: Aux[Any] = Aux("input of each step")


def before_loop(ctx: EmitContext, layer: Any) -> None:
    """Makes and notes what the steps of a cell share, unless it depends on a layer of the loop.

    :param layer: a `rec` layer with a named unit
    """
    node: Node = layer.node
    specs = [spec for spec in node.params.values() if isinstance(spec, LayerAsParam)]
    if all(spec.node in ctx.lowering.values for spec in specs):
        cell = _prepared(ctx, layer)
        ctx.set_aux(node, PREPARED, _with_known_input(ctx, layer, cell) or StepPlan(cell))


def _prepared(ctx: EmitContext, layer: Any) -> PreparedCell:
    params = {spec.name: ctx.param(layer.param_prefix + spec.name) for spec in layer.cell.param_specs()}
    entries: Any = 1
    for size in ctx.shape(layer.hidden_state.data)[:-1]:
        entries = entries * size
    return prepare_cell(layer.cell, params, batch=entries, seed=ctx.seed("cell") if ctx.train else None)


def _with_known_input(ctx: EmitContext, layer: Any, cell: PreparedCell) -> Optional[StepPlan]:
    """The products of the input weights with the sources which are known for all steps, all at once."""
    plain = all(
        source.output.rank == 2 and source.output.batch_axis == 0 and source.output.feature_axis == 1
        for source in layer.sources
    )
    if cell.projection is None or not plain or layer.dropout:
        return None
    weights, bias = cell.projection
    known, row, rest, rows = None, 0, [], []
    for source in layer.sources:
        part = weights[row : row + source.output.dim]
        row += source.output.dim
        value = ctx.aux(source, ALL_STEPS)
        if value is None:
            value = ctx.lowering.values.get(source)
        if value is None:
            rest.append(source)
            rows.append(part)
            continue
        product = project(value, part)
        known = product if known is None else known + product
    if known is None:
        return None
    if bias is not None:
        known = known + bias
    if known.shape.rank == 2:
        return StepPlan(cell, known, (rest, _joined(rows)))
    ctx.set_aux(layer.node, STEP_INPUT, known)
    return StepPlan(cell, None, (rest, _joined(rows)))


def _joined(rows: List[Any]) -> Any:
    return rows[0] if len(rows) == 1 else tf.concat(rows, axis=0) if rows else None


def emit_step(ctx: EmitContext, layer: Any) -> Tuple[Any, Tuple[Any, ...]]:
    """(Output, new states) of one step in the layout of the output."""
    plan = ctx.aux(layer.node, PREPARED)
    plan = StepPlan(_prepared(ctx, layer)) if plan is None else plan
    n, shape = layer.cell.n_out, ctx.shape(ctx.output)
    is_flat = len(shape) == 2
    state = tuple(ctx.loop_state(str(i)) for i in range(layer.hidden_state.count))
    if not is_flat:
        state = tuple(tf.reshape(part, [-1, n]) for part in state)
    index = ctx.lowering.loop_index
    known = ctx.lowering.loop_inputs.get((layer.node, STEP_INPUT), plan.known)
    if known is None:
        x = layer.emit_input(ctx)
        if not is_flat:
            x = tf.reshape(x, [-1] if layer.input.sparse_dim is not None else [-1, layer.input.dim])
        y, state = plan.cell.step(x, state, index)
    else:
        sources, weights = plan.rest
        z = known
        if sources:
            values = [ctx.value(source) for source in sources]
            z = z + project(values[0] if len(values) == 1 else tf.concat(values, axis=1), weights)
        y, state = plan.cell.step_projected(z, state, index)
    if is_flat:
        return y, state
    return tf.reshape(y, tf.stack(shape)), tuple(tf.reshape(part, tf.stack(shape)) for part in state)
