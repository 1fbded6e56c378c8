"""The cell of a recurrent layer: unit, parameters, hidden state, and the state before the first frame."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import HiddenState
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.initial_state import (
    InitialState,
    emit_initial_state,
    plan_given_state,
    plan_initial_state,
)
from returnn_tf.ops.cells import Cell, unit_class
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.precision import float_dtype
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class PlannedCell:
    """A cell with its parameters and states.

    :param prefix: prefix of its parameter names
    :param initial: source of each tensor of the initial state
    """

    cell: Cell
    prefix: str
    state: HiddenState
    initial: list[InitialState]

    def params(self, ctx: EmitContext) -> dict[str, Any]:
        """Return the values of the parameters by their name in the cell."""
        return {spec.name: ctx.param(self.prefix + spec.name) for spec in self.cell.param_specs()}

    def given_state(self, ctx: EmitContext) -> Optional[tuple[Any, ...]]:
        """Return the given state before the first frame, or None if it is zero."""
        return emit_initial_state(ctx, self.initial, self.state.data)

    def first_state(self, ctx: EmitContext) -> tuple[Any, ...]:
        """Return the state before the first frame, each tensor in the layout of `HiddenState.data`."""
        state = self.given_state(ctx)
        if state is None:
            return (tf.zeros(tf.stack(ctx.shape(self.state.data)), float_dtype()),) * self.state.count
        return state

    def state_before(self, ctx: EmitContext) -> Optional[tuple[Any, ...]]:
        """Return the state before the frames of this batch, None if it is zero; in a stream that after the last one."""
        if not ctx.continues:
            return self.given_state(ctx)
        first, data = self.first_state(ctx), self.state.data
        return tuple(
            value if part.kept is not None else ctx.state_before(name, data, value)
            for name, part, value in zip(self._names, self.initial, first)
        )

    def state_after(self, ctx: EmitContext, state: tuple[Any, ...]) -> None:
        """Pass the last state on to the next block of a stream, see `state_before`."""
        for name, part, value in zip(self._names, self.initial, state):
            if part.kept is None:
                ctx.state_after(name, self.state.data, value)

    def keep(self, ctx: EmitContext, state: tuple[Any, ...]) -> None:
        """Keep the last state for the next batch, where the option says so; each tensor in the layout of the state."""
        for part, value in zip(self.initial, state):
            if part.kept is not None:
                ctx.keep(part.kept, value)

    @property
    def _names(self) -> list[str]:
        return ["state/%s" % key for key in self.state.keys] or ["state"]

    def first_output(self, ctx: EmitContext) -> Any:
        """Return the part of the first state that is also an output."""
        return self.first_state(ctx)[self.state.keys.index("h") if "h" in self.state.keys else 0]


def vectors_of(ctx: PlanContext, data: Data) -> tuple[list[int], Data]:
    """Return (the axes of the input of a cell with the features last, the template of its output without features).

    :param data: the input; labels have no feature axis
    """
    base = data.replace(dtype=float_dtype(), sparse_dim=None, vocab=None)
    if data.sparse_dim is not None:
        return list(range(data.rank)), base.replace(feature_axis=None)
    ctx.need_feature(data)
    perm = [axis for axis in range(data.rank) if axis != data.feature_axis] + [data.feature_axis or 0]
    return perm, base.permuted(perm).without_axes([data.rank - 1])


def plan_cell(
    ctx: PlanContext, layer: Any, data: Data, out: Dim, state_data: Data, *, in_step: bool = False
) -> PlannedCell:
    """Plan the cell of a `RecLayer`, and declare its parameters.

    :param data: input of the cell
    :param out: the feature dim of its output
    :param state_data: template of each tensor of its state
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
        where="option 'unit_opts'" if layer.unit_opts else "option 'unit'",
    )
    # A name_scope replaces "<layer>/rec".
    prefix = "rec/" if layer.name_scope is None else ""
    given = {
        "forward": layer.forward_weights_init,
        "recurrent": layer.recurrent_weights_init,
        "bias": layer.bias_init,
        "fixed": None,
    }
    for spec in cell.param_specs():
        init = given[spec.kind]
        if init is None and spec.default is not None:
            init = spec.default
        if init is None:
            init = "glorot_uniform" if layer.recurrent_weights_init is None else layer.recurrent_weights_init
        ctx.param(prefix + spec.name, spec.shape, init)
    state = HiddenState(cell.state_keys, state_data)
    if layer.state is not None:
        initial = plan_given_state(ctx, layer.state, state)
    else:
        initial = plan_initial_state(ctx, layer.initial_state, state, "" if in_step else prefix)
    return PlannedCell(cell, prefix, state, initial)
