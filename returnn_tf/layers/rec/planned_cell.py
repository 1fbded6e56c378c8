"""The cell of a recurrent layer: unit, parameters, hidden state, and the state before the first frame."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.initial_state import (
    InitialState,
    emit_initial_state,
    plan_given_state,
    plan_initial_state,
)
from returnn_tf.ops.cells import Cell, unit_class
from returnn_tf.ops.cells.params import INPUT
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.parts import Parts, total_size
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class PlannedCell:
    """A cell with its parameters and states.

    :param prefix: prefix of its parameter names
    :param output: template of the output for one frame
    :param initial: source of each tensor of the initial state
    """

    cell: Cell
    prefix: str
    output: Data
    state: HiddenState
    initial: list[InitialState]

    def params(self, ctx: EmitContext) -> dict[str, Any]:
        """Return the parameters by their name in the cell, rounded ones as they are if it multiplies with these."""
        names = {spec.name: self.prefix + spec.name for spec in self.cell.param_specs()}
        stored = {name: ctx.rounded_matrix(full) for name, full in names.items() if name in self.cell.factors()}
        return {name: stored.get(name) or ctx.param(full) for name, full in names.items()}

    def param_parts(self, name: str, axis: int, inputs: Parts) -> Parts:
        """Return the parts of an axis of a parameter, or an empty list if it is none of the cell.

        :param name: relative to the scope of the layer
        :param inputs: the parts of the features of all sources
        """
        axes = self.cell.param_axes().get(name[len(self.prefix) :])
        result: Parts = []
        for part in () if axes is None else axes[axis]:
            is_input = part.label == INPUT and part.size == total_size(inputs)
            result += inputs if is_input else [part]
        return result

    def given_state(self, ctx: EmitContext) -> Optional[tuple[Any, ...]]:
        """Return the given state before the first frame, or None if it is zero."""
        return emit_initial_state(ctx, self.initial, self.state)

    def first_state(self, ctx: EmitContext) -> tuple[Any, ...]:
        """Return the state before the first frame, each tensor in the layout of `HiddenState.parts`."""
        state = self.given_state(ctx)
        if state is None:
            return tuple(tf.zeros(tf.stack(ctx.shape(part)), ctx.float_dtype) for part in self.state.parts)
        return state

    def flat(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the tensors of a state as [batch, size]: all axes but the features count as batch."""
        return tuple(tf.reshape(part, [-1, size]) for part, size in zip(state, self.cell.state_sizes()))

    def laid_out(self, ctx: EmitContext, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the tensors of a state in the layout of `HiddenState.parts`: the inverse of `flat`."""
        return tuple(tf.reshape(value, tf.stack(ctx.shape(part))) for value, part in zip(state, self.state.parts))

    def state_before(self, ctx: EmitContext) -> Optional[tuple[Any, ...]]:
        """Return the state before the frames of this batch, None if it is zero; in a stream that after the last one."""
        if not ctx.continues:
            return self.given_state(ctx)
        return tuple(
            value if part.kept is not None else ctx.state_before(name, data, value)
            for name, part, data, value in zip(self._names, self.initial, self.state.parts, self.first_state(ctx))
        )

    def state_after(self, ctx: EmitContext, state: tuple[Any, ...]) -> None:
        """Pass the last state on to the next block of a stream, see `state_before`."""
        for name, part, data, value in zip(self._names, self.initial, self.state.parts, state):
            if part.kept is None:
                ctx.state_after(name, data, value)

    def keep(self, ctx: EmitContext, state: tuple[Any, ...]) -> None:
        """Keep the last state for the next batch, where the option says so; each tensor in the layout of the state."""
        for part, value in zip(self.initial, state):
            if part.kept is not None:
                ctx.keep(part.kept, value)

    @property
    def _names(self) -> list[str]:
        return ["state/%s" % key for key in self.state.keys] or ["state"]

    def first_output(self, ctx: EmitContext) -> Any:
        """Return the output before the first frame: the state that is an output, zeros if none is."""
        index = self.cell.output_state
        if index is None:
            return tf.zeros(tf.stack(ctx.shape(self.output)), ctx.float_dtype)
        return self.first_state(ctx)[index]


def vectors_of(ctx: PlanContext, data: Data) -> tuple[list[int], Data]:
    """Return (the axes of the input of a cell with the features last, the template of its output without features).

    :param data: the input; labels have no feature axis
    """
    base = data.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
    if data.sparse_dim is not None:
        return list(range(data.rank)), base.replace(feature_axis=None)
    ctx.need_feature(data)
    perm = [axis for axis in range(data.rank) if axis != data.feature_axis] + [data.feature_axis or 0]
    return perm, base.permuted(perm).without_axes([data.rank - 1])


def plan_cell(
    ctx: PlanContext, layer: Any, data: Data, out: Dim, output: Data, *, in_step: bool = False
) -> PlannedCell:
    """Plan the cell of a `RecLayer`, and declare its parameters.

    :param data: input of the cell
    :param out: the feature dim of its output
    :param output: template of the output for one frame
    :param in_step: it runs step by step in a loop, where the parameters of its initial state are in the scope of the
        layer, like in RETURNN, not in that of the unit
    """
    dim = data.sparse_dim if data.sparse_dim is not None else ctx.need_feature(data)
    n_out = ctx.need_static(out, "out_dim")
    cell = unit_class(layer.unit, where="option 'unit'", single_step=layer.single_step)(
        n_out,
        ctx.need_static(dim, "the feature axis of the source"),
        sparse_input=data.sparse_dim is not None,
        unit_opts=layer.unit_opts,
        input_projection=layer.input_projection,
        behavior_version=ctx.behavior_version,
        product_dtype=ctx.semantics.product_dtype,
        where="option 'unit_opts'" if layer.unit_opts else "option 'unit'",
    )
    # A name_scope replaces "<layer>/rec".
    prefix = "rec/" if layer.name_scope is None else ""
    forward, recurrent = layer.weights_inits()
    given = {
        "forward": forward,
        "recurrent": recurrent,
        "bias": layer.bias_init,
        "fixed": None,
    }
    for spec in cell.param_specs():
        init = given[spec.kind]
        if init is None and spec.default is not None:
            init = spec.default
        if init is None:
            init = "glorot_uniform" if recurrent is None else recurrent
        ctx.param(prefix + spec.name, spec.shape, init)
    # The output before may come from any unit, a memory only means something to the unit that reads it.
    unit = cell.unit if cell.output_state is None else None
    state = HiddenState(cell.state_keys, _state_parts(ctx, cell, output), unit)
    if layer.state is not None:
        initial = plan_given_state(ctx, layer.state, state)
    else:
        initial = plan_initial_state(ctx, layer.initial_state, state, "" if in_step else prefix)
    return PlannedCell(cell, prefix, output, state, initial)


def _state_parts(ctx: PlanContext, cell: Cell, output: Data) -> tuple[Data, ...]:
    """Return the templates of the tensors of the state; those of the size of the output have its feature dim."""
    axis = output.feature_axis
    assert axis is not None
    dims = {cell.n_out: output.dims[axis]}
    for size in cell.state_sizes():
        if size not in dims:
            dims[size] = ctx.new_feature(size, "%s:state" % ctx.node.path)
    return tuple(output.with_dim(axis, dims[size]) for size in cell.state_sizes())
