"""Values that are held while a mask is false: the output of the unit of `masked_computation`, and parts of the unit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.attention.history import mask_history
from returnn_tf.layers.masked.held_initial import HeldInitial, held_in_stream, pass_on_held, plan_held_initial
from returnn_tf.layers.masked.pack import batch_of, in_full_layout, leading, picked
from returnn_tf.layers.masked.unit_on_zeros import UnitOnZeros
from returnn_tf.ops.frames.masking import last_picked, spread
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_STATE = "output"


@dataclasses.dataclass(frozen=True)
class Selection:
    """The frames in which the unit is computed.

    :param mask: true in these frames; None: they are selected already
    :param selected: the dim of these frames; None in one step of a loop, where the unit is computed for all sequences
    :param steps: in a loop, for all steps at once: their dim
    """

    mask: Optional[Node]
    selected: Optional[Dim] = None
    steps: Optional[Dim] = None


@dataclasses.dataclass(frozen=True, eq=False)
class HeldPlan(LayerPlan):
    """The plan of a held value. Either one step of a loop is computed, or all of them, or selected frames.

    :param frames: the dim of the selected frames in the output, if it has them
    :param initial: the output before the first selected frame
    :param selection: the frames in which the unit is computed
    :param stateful: for one step: the layers of the unit whose states advance with the mask
    :param packed: for all steps: the layout of the value in the unit, with the selected frames
    """

    frames: Optional[Dim]
    initial: HeldInitial
    selection: Selection
    stateful: Optional[Sequence[Node]] = None
    packed: Optional[Data] = None


#: Plans the initial output for the template of one step.
PlanInitial = Callable[[Data], HeldInitial]


def planned_held(
    ctx: PlanContext, selection: Selection, value: Node, nodes: Sequence[Node], plan_initial: PlanInitial
) -> HeldPlan:
    """Plan a held value.

    :param value: in the unit
    :param nodes: the layers of the unit that were planned for it; the state of each advances with one held value
    :raises ConfigError: the value has an axis that grows from step to step
    """
    data = value.output
    if selection.mask is None or (selection.selected is not None and selection.steps is None):
        return HeldPlan(data, selection.selected, plan_initial(data), selection)
    _check_fixed_shape(ctx, value, nodes)
    batch = batch_of(data, selection.mask.output)
    if selection.selected is not None and selection.steps is not None:
        packed = leading(data, batch, selection.selected)
        data = packed.with_dim(packed.dims.index(selection.selected), selection.steps)
        return HeldPlan(data, None, plan_initial(one_step(data)), selection, packed=packed)
    for node in nodes:
        if node.layer.history_grows and node.loop_states:  # it cannot be held, but may skip unselected steps
            mask_history(node, selection.mask)
    stateful = [node for node in nodes if node.loop_states and not node.layer.history_grows]
    for node in stateful:
        ctx.depend(node)
    batch = batch_of(selection.mask.output)
    if batch is not None and data.batch_axis is None:
        data = data.with_axis(0, batch)
    initial = plan_initial(data)
    ctx.loop_state(_STATE, data, ctx.node.layer.initial_output_value)
    return HeldPlan(data, None, initial, selection, stateful=stateful)


def _check_fixed_shape(ctx: PlanContext, value: Node, nodes: Sequence[Node]) -> None:
    """Reject a growing history axis in the value, which cannot be held from step to step."""
    for node in nodes:
        history = node.layer.history
        if history is not None and history in value.output.dims:
            raise ctx.error(
                "the output of the unit, %s, has the history %r of layer %r, which grows from step to step, so it "
                "cannot be kept where the mask is false. Let the unit reduce that axis, e.g. by attention over it."
                % (value.output, history, node.path)
            )


def one_step(data: Data) -> Data:
    """Return a template without the steps of a loop."""
    return data.without_axes(data.loop_axes)


def initial_of_held(ctx: EmitContext, plan: HeldPlan) -> Any:
    """Return the value of ``prev:`` of a held value in the first step of a loop."""
    data = one_step(ctx.output)
    shape = ctx.shape(data)
    return tf.broadcast_to(plan.initial.emit(ctx, data), tf.stack(shape) if shape else [])


def emit_held(ctx: EmitContext, plan: HeldPlan, value: Node) -> Any:
    """Emit what was planned: one step, all steps, or only the selected frames.

    :param value: in the unit
    """
    if plan.stateful is not None:
        return _emit_step(ctx, plan, plan.stateful, value)
    if plan.packed is not None:
        return _emit_all_steps(ctx, plan, plan.packed, value)
    ctx.forward_aux(value)
    return ctx.value(value)


def _emit_step(ctx: EmitContext, plan: HeldPlan, stateful: Sequence[Node], value: Node) -> Any:
    """Emit one step: the states of the unit advance only where the mask is true."""
    selected = plan.selection.mask
    assert selected is not None
    for node in stateful:
        inner = EmitContext(node, ctx.lowering)
        for key, (data, _) in node.loop_states.items():
            new = ctx.lowering.loop.next_states[node, key]
            mask = ctx.broadcast(selected, data)
            inner.set_loop_state(key, tf.where(mask, new, inner.loop_state(key)))
    new = ctx.broadcast(value, ctx.output)
    held = tf.where(ctx.broadcast(selected, ctx.output), new, ctx.loop_state(_STATE))
    ctx.set_loop_state(_STATE, held)
    return held


def _emit_all_steps(ctx: EmitContext, plan: HeldPlan, packed: Data, value: Node) -> Any:
    """Emit for each step the last selected frame up to it."""
    mask, frames = plan.selection.mask, plan.selection.steps
    assert mask is not None and frames is not None
    x = in_full_layout(ctx, value, packed)
    batch = batch_of(packed)
    index = last_picked(picked(ctx, mask, batch, frames))
    initial = initial_in_layout(ctx, plan.initial, ctx.output, frames)
    initial = held_in_stream(ctx, ctx.output, frames, initial)
    y = spread(x[None], index, initial[None])[0] if batch is None else spread(x, index, initial)
    pass_on_held(ctx, ctx.output, frames, initial, y)
    return y


def initial_in_layout(ctx: EmitContext, initial: HeldInitial, data: Data, frames: Dim) -> Any:
    """Return an initial output, broadcasting against ``data``."""
    axis = data.dims.index(frames)
    one = data.without_axes([axis])
    value = tf.convert_to_tensor(initial.emit(ctx, one))
    return value if value.shape.rank == 0 else tf.expand_dims(value, axis)


class HeldPartLayer(Planned[HeldPlan]):
    """A part of the unit of `masked_computation`, held as its output is.

    The initial output is that of the part, by its option or as a recurrent layer, else zeros.

    :param selection: the frames in which the unit is computed
    :param nodes: all layers of the unit
    :param added: those that only this part needs, so that nothing else holds their states
    :param inputs: what the unit sees as its sources
    """

    class_name = "masked part"
    has_memory = True
    computes_all_steps = True
    starts_on_zeros = True

    def __init__(self, selection: Selection, nodes: list[Node], added: list[Node], inputs: Sequence[Node]) -> None:
        super().__init__()
        self.selection, self.nodes, self.added, self.inputs = selection, nodes, added, inputs

    def template(self, ctx: PlanContext) -> HeldPlan:
        """Return the template of the part, for all frames that the mask covers."""
        part, selection = self.source, self.selection
        if selection.mask is not None:
            ctx.depend(selection.mask)

        def plan_initial(data: Data) -> HeldInitial:
            on_zeros = UnitOnZeros(self.nodes, part, self.inputs, selection.selected)
            return plan_held_initial(ctx, part.layer.initial_output, data, part, None, on_zeros)

        return planned_held(ctx, selection, part, self.added, plan_initial)

    def gives_initial_output(self) -> bool:
        """Return True: the value that is held until the mask is true."""
        return True

    def initial_output_value(self, ctx: EmitContext) -> Any:
        """Return the value of ``prev:`` in the first step of a loop."""
        return initial_of_held(ctx, self.plan)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the part in the frames that were planned."""
        return emit_held(ctx, self.plan, self.source)
