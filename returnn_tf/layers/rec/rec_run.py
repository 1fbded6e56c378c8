"""The computation of a `rec` layer: a loop, one step of a cell in an enclosing loop, or a cell over frames or once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Optional, Protocol

from returnn_tf.config.errors import OptionError
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import HIDDEN_STATE
from returnn_tf.graph.layer import Node
from returnn_tf.graph.params.reuse import LayerAsParam
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.planned_cell import PlannedCell, plan_cell, vectors_of
from returnn_tf.layers.shared.loop_axis import means_steps, with_frames, with_steps
from returnn_tf.loops.aux_values import ALL_STEPS, STEP_INPUT
from returnn_tf.loops.over_steps import OverSteps, StepMatrix, rows_over_steps
from returnn_tf.loops.packed import packed_for_search
from returnn_tf.ops.cells import run_cell
from returnn_tf.ops.cells.base import project
from returnn_tf.ops.cells.single_step import PreparedCell, prepare_cell
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.rounded import one_below_the_other, split_rows
from returnn_tf.tensor import Data, single_step_dim
from returnn_tf.util.lazy_tf import tf


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
        reason = ", as the source %s has no time axis" % data if data.time_axis is None else ""
        raise OptionError("direction -1 reverses a sequence, but this is a single step%s. Remove the option." % reason)
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
        in_loop = ctx.in_step or ctx.loop_dim is not None
        return data.time_axis is None or (layer.single_step and in_loop)
    return means_steps(ctx, data, layer.axis)


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
        y, state = prepared.step(x, state, ctx.lowering.loop.index)
        state = self.cell.laid_out(ctx, state)
        y = tf.reshape(y, tf.stack(ctx.shape(self.output)))
        if layer.back_prop is False:
            y, state = tf.stop_gradient(y), tuple(tf.stop_gradient(part) for part in state)
        ctx.set_aux(ctx.node, HIDDEN_STATE, state)
        self.cell.keep(ctx, state)
        return y


@dataclasses.dataclass
class StepPlan:
    """A prepared cell, and the part of its input projection that is known before the loop.

    :param known: [batch, projected_dim] if equal in all steps, the bias included
    :param rest: (sources known only in the step, their rows of the input weights)
    """

    cell: PreparedCell
    known: Any = None
    rest: tuple[list[Node], Any] = ((), None)  # type: ignore[assignment]

    def with_matrices(self, change: Callable[[Any], Any]) -> StepPlan:
        """Return the plan with other factors of the state, of the input, and of the sources known only in the step.

        :param change: also called with vectors among the weights of the cell, and with None
        """
        cell, (sources, rows) = self.cell, self.rest
        projection = None if cell.projection is None else (change(cell.projection[0]), cell.projection[1])
        cell = dataclasses.replace(cell, weights=[change(w) for w in cell.weights], projection=projection)
        return dataclasses.replace(self, cell=cell, rest=(sources, change(rows)))


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
        if all(spec.node in ctx.lowering.values.outputs for spec in specs):
            cell = self._prepared(ctx)
            plan = self._with_known_input(ctx, cell) or StepPlan(cell)
            if self.cell.cell.multiplies_rounded and not self.cell.cell.sparse_input:
                plan = plan.with_matrices(
                    lambda w: rows_over_steps(ctx, self.output, w) or packed_for_search(ctx, w) or w
                )
            ctx.set_aux(ctx.node, PREPARED, plan)

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
        known, rest, rows = None, [], []
        for source, part in zip(sources, split_rows(weights, [source.output.dim or 0 for source in sources])):
            value = ctx.aux(source, ALL_STEPS)
            if value is None:
                value = ctx.lowering.values.outputs.get(source)
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
        index = ctx.lowering.loop.index
        plan = plan.with_matrices(lambda w: StepMatrix(w, index) if isinstance(w, OverSteps) else w)
        known = ctx.lowering.loop.inputs.get((ctx.node, STEP_INPUT), plan.known)
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
    return rows[0] if len(rows) == 1 else one_below_the_other(rows) if rows else None


class CellOverFrames:
    """Runs the cell of a layer over frames: those of a sequence, or all steps of a loop at once.

    :param layer: a `RecLayer` with a unit name
    :param data: its input
    :param steps: whether the frames are the steps of a loop
    """

    def __init__(self, ctx: PlanContext, layer: Any, data: Data, *, steps: bool = False) -> None:
        if steps:
            data, axis = with_steps(ctx, data), None
        else:
            axis = data.time_axis if layer.axis is None else ctx.axis(data, layer.axis)
        self._layer = layer
        self._frames = data
        self._perm, output = self._layout(ctx, data, axis)
        out = ctx.out_feature()
        output = output.with_axis(output.rank, out, feature=True)
        # For all steps of a loop at once, the iterated axis is not marked as time, like in a single step.
        self.output = output.replace(time_axis=None if output.dims[0].is_loop else 0)
        self.cell = plan_cell(ctx, layer, data, out, self.output.without_axes([0]))

    @property
    def is_fused(self) -> bool:
        """Return whether the frames are the steps of a loop."""
        return self.output.dims[0].is_loop

    def _layout(self, ctx: PlanContext, data: Data, axis: Optional[int]) -> tuple[list[int], Data]:
        """Return (source axes in the cell's order: iterated, batch, others, feature; the template without feature).

        :param axis: to iterate over, None: the steps of the loop
        """
        feature = data.feature_axis
        if data.sparse_dim is None:
            ctx.need_feature(data)
        if axis is None:
            assert ctx.loop_dim is not None
            axis = data.dims.index(ctx.loop_dim)
        if axis in (feature, data.batch_axis):
            raise OptionError(
                "cannot iterate over the %s axis of %s." % ("feature" if axis == feature else "batch", data)
            )
        if data.sparse_dim is not None:
            feature = None
        perm = [axis] + [i for i in (data.batch_axis,) if i is not None]
        perm += [i for i in range(data.rank) if i not in perm and i != feature]
        output = data.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
        if feature is None:
            return perm, output.permuted(perm)
        return perm + [feature], output.permuted(perm + [feature]).without_axes([len(perm)])

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the input projection of all frames at once, then the loop over frames."""
        data, layer, cell = self._frames, self._layer, self.cell.cell
        x = transpose(with_frames(ctx, layer.emit_input(ctx), layer.input, data), self._perm)
        shape = [ctx.size(data.dims[axis]) for axis in self._perm]
        has_feature = data.sparse_dim is None
        batch_shape = shape[1 : len(shape) - 1 if has_feature else len(shape)]
        merge = len(batch_shape) != 1
        if merge:
            x = tf.reshape(x, tf.stack([shape[0], -1] + (shape[-1:] if has_feature else [])))
        if layer.direction == -1 and ctx.has_stream(data.without_axes([self._perm[0]])) and self._runs_over_stream:
            raise OptionError(
                "Layer %r (class 'rec') runs backwards, from the end of whole sequences, so it can't go on from block "
                "to block of frames. Use direction 1." % ctx.node.path
            )
        params, initial = self.cell.params(ctx), self._initial_state(ctx, merge)
        y, state = run_cell(
            cell,
            params,
            x,
            self._lengths(ctx),
            initial_state=initial,
            direction=layer.direction or 1,
            seed=ctx.seed("cell") if ctx.train else None,
        )
        if merge:
            y = tf.reshape(y, tf.stack([shape[0], *batch_shape, cell.n_out]))
            state = self.cell.laid_out(ctx, state)
        if layer.back_prop is False:
            y, state = tf.stop_gradient(y), tuple(tf.stop_gradient(part) for part in state)
        ctx.set_aux(ctx.node, HIDDEN_STATE, state)
        self.cell.keep(ctx, state)
        if self._runs_over_stream:
            self.cell.state_after(ctx, state)
        return y

    def before_loop(self, ctx: EmitContext) -> None:
        """Do nothing: it does not run step by step."""

    @property
    def _runs_over_stream(self) -> bool:
        """Return whether there may be more frames before or after these; not where they are those of a chunk."""
        return self._frames.dims[self._perm[0]].is_dynamic()

    def _lengths(self, ctx: EmitContext) -> Optional[Any]:
        """Return the lengths, int [merged batch]; None if the iterated axis has one length for all."""
        dims = [self._frames.dims[axis] for axis in self._perm]
        if not dims[0].is_dynamic():
            return None
        lengths = ctx.lens(dims[0])
        if lengths.shape.rank == 0:
            return None
        others = dims[2:] if self._layer.input.sparse_dim is not None else dims[2:-1]
        repeats: Any = 1
        for dim in others:
            repeats = repeats * ctx.size(dim)
        return tf.repeat(lengths, repeats) if others else lengths

    def _initial_state(self, ctx: EmitContext, merge: bool) -> Optional[tuple[Any, ...]]:
        state = self.cell.state_before(ctx) if self._runs_over_stream else self.cell.given_state(ctx)
        return state if state is None or not merge else self.cell.flat(state)
