"""`masked_computation`: a layer that is computed only in the frames where a mask is true."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.options import OptionalLayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import InitialOutput
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.attention.history import mask_history
from returnn_tf.layers.masked.held_initial import KEYWORDS, HeldInitial, held_in_stream, pass_on_held, plan_held_initial
from returnn_tf.layers.masked.pack import (
    PackLayer,
    PickedIndexLayer,
    batch_of,
    check_mask,
    in_full_layout,
    leading,
    picked,
)
from returnn_tf.layers.masked.unit_on_zeros import UnitOnZeros
from returnn_tf.layers.nested.unit_network import unit_network, unit_references
from returnn_tf.layers.shared.loop_axis import means_steps
from returnn_tf.ops.frames.masking import last_picked, spread
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf

_STATE = "output"


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedPlan(LayerPlan):
    """The plan of `MaskedComputationLayer`. Either one step of a loop is computed, or all of them, or selected frames.

    :param frames: the dim of the selected frames in the output, if it has them
    :param initial: the output before the first selected frame
    :param stateful: for one step: the layers of the unit whose states advance with the mask
    :param packed: for all steps: the layout of the unit's output, with the selected frames
    :param loop_dim: for all steps: their dim
    """

    frames: Optional[Dim]
    initial: HeldInitial
    stateful: Optional[Sequence[Node]] = None
    packed: Optional[Data] = None
    loop_dim: Optional[Dim] = None


@register_layer("masked_computation")
class MaskedComputationLayer(Planned[MaskedPlan]):
    """``y = unit(x)`` in the frames where the mask is true; the unit never sees the others.

    The source is "data" in the unit, by default "data" of the network around. A unit that does not take "data" needs no
    source: it names layers itself, whose frames are selected likewise.

    In a loop, a step outside the mask keeps the output of the previous step, and so do all states inside the unit;
    before the first selected step the output is ``initial_output``, else the initial state of a recurrent unit, else
    zero. What does not depend on the loop is computed for all steps at once: only the selected frames, packed.

    Parameters: those of the unit, as if it were this layer: ``<layer>/W``, with a subnetwork ``<layer>/<inner>/W``.

    Lengths: in a loop unchanged. Outside loops the output consists of the selected frames only; `unmask` puts them
    back.

    Example::

        network = {
            "energy": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data"},
            "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "energy"},
            "h": {"class": "masked_computation", "mask": "mask", "from": "data",
                  "unit": {"class": "rec", "unit": "lstm", "n_out": 3}},
            "output": {"class": "unmask", "mask": "mask", "from": "h"}}
    """

    has_memory = True
    starts_on_zeros = True
    computes_all_steps = True
    always_takes_data = True
    keeps_features = True
    units = {"unit": True}
    mask: OptionalLayerRef = option(None, help="layer with a bool for each frame", refs=True)
    unit: dict[str, Any] = option(
        help="the layer to compute, a dict; its source 'data' is the source of this layer", network=True
    )
    masked_from: OptionalLayerRef = option(
        None, help="layer with the selected frames, replacing source and mask where all steps are known", refs=True
    )
    in_spatial_dim: Optional[Dim] = option(
        None, help="outside of loops: the dim of the frames; other layers that the unit uses are masked along it too"
    )
    out_spatial_dim: Optional[Dim] = option(None, help="with in_spatial_dim: the new dim of the selected frames")
    initial_output: InitialOutput = option(
        None, help="in a loop: the output before the first selected frame", refs=True, keywords=KEYWORDS
    )

    #: The dim of the packed frames, if the output has it.
    frames: Optional[Dim] = None

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the unit has its own source, which defaults to "data"."""
        unit = options.get("unit")
        given = unit.get("from", "data") if isinstance(unit, Mapping) else "data"
        return "data" in ([given] if isinstance(given, str) else list(given or ()))

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of the enclosing network that the unit refers to."""
        yield from unit_references(options.get("unit"), own_data=True)

    @classmethod
    def param_references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of which the unit uses parameters."""
        yield from unit_references(options.get("unit"), own_data=True, of_params=True)

    def template(self, ctx: PlanContext) -> MaskedPlan:
        """Return the template of the unit."""
        if len(self.sources) > 1:
            ctx.single_source()
        own = own_frames(ctx, self)
        if own is None and ctx.in_step and ctx.loop_dim is None:
            return self._planned_step(ctx)
        if isinstance(self.masked_from, Node):
            # Source and mask are not even computed: in training they may belong to an unknown alignment.
            ctx.node.deps = [dep for dep in ctx.node.deps if dep not in (*self.sources, self.mask)]
            ctx.depend(self.masked_from)
            unit = self._plan_unit(ctx, {"data": self.masked_from})
            dims = self.masked_from.output.dims
            selected = self.out_spatial_dim if self.out_spatial_dim in dims else self.masked_from.output.time_dim
            initial = self._planned_initial(ctx, unit, unit.result.output, selected)
            return MaskedPlan(unit.result.output, selected, initial)
        frames = own or ctx.loop_dim or time_of_source(ctx)
        check_mask(ctx, self.mask, frames)
        return self._planned_frames(ctx, frames)

    def _plan_unit(self, ctx: PlanContext, inputs: dict[str, Node], loop_dim: Optional[Dim] = None) -> _Unit:
        def outside(name: str) -> str:
            if name == "data":
                return name
            return "data:" + _key(name) if _key(name) in inputs else "base:" + name

        network = unit_network(
            self.unit, outside, own_data=True, owner=lambda name: "base:" + name, where="the option 'unit'"
        )
        before = len(ctx.planner.planned_nodes)
        result = ctx.node.passes_on = ctx.subnetwork(network, inputs, loop_dim=loop_dim)
        prefix = ctx.node.path + "/"
        nodes = [node for node in ctx.planner.planned_nodes[before:] if node.path.startswith(prefix)]
        return _Unit(result, nodes, [inputs["data"]] if "data" in inputs else [])

    def _planned_initial(self, ctx: PlanContext, unit: _Unit, data: Data, frames: Optional[Dim] = None) -> HeldInitial:
        on_zeros = UnitOnZeros(unit.nodes, unit.result, unit.sources, frames)
        return plan_held_initial(ctx, self.initial_output, data, unit.result, self.unit, on_zeros)

    # --- one step of a loop ---

    def _planned_step(self, ctx: PlanContext) -> MaskedPlan:
        check_mask(ctx, self.mask, None)
        inputs = {"data": self.source} if self.sources else {}
        if self.sources and PickedIndexLayer.suits(self.source.output, self.mask.output):
            inputs["data"] = ctx.implicit("picked", PickedIndexLayer(), [self.source, self.mask])
        unit = self._plan_unit(ctx, inputs)
        for node in unit.nodes:
            if node.layer.history_grows and node.loop_states:  # it cannot be held, but may skip unselected steps
                mask_history(node, self.mask)
        stateful = [node for node in unit.nodes if node.loop_states and not node.layer.history_grows]
        for node in stateful:
            ctx.depend(node)
        data = unit.result.output
        _check_fixed_shape(ctx, unit)
        batch = batch_of(self.mask.output)
        if batch is not None and data.batch_axis is None:
            data = data.with_axis(0, batch)
        initial = self._planned_initial(ctx, unit, data)
        ctx.loop_state(_STATE, data, self.initial_output_value)
        return MaskedPlan(data, None, initial, stateful=stateful)

    def gives_initial_output(self) -> bool:
        """Return True: the value that is held until the mask is true."""
        return True

    def initial_output_value(self, ctx: EmitContext) -> Any:
        """Return the value of ``prev:`` in the first step of a loop."""
        data = self._one_step(ctx.output)
        return tf.broadcast_to(self.plan.initial.emit(ctx, data), tf.stack(ctx.shape(data)))

    def _one_step(self, data: Data) -> Data:
        return data.without_axes(data.loop_axes)

    def _emit_step(self, ctx: EmitContext, stateful: Sequence[Node], unit: Node) -> Any:
        """Emit one step: the states of the unit advance only where the mask is true."""
        for node in stateful:
            inner = EmitContext(node, ctx.lowering)
            for key, (data, _) in node.loop_states.items():
                new = ctx.lowering.loop.next_states[node, key]
                mask = ctx.broadcast(self.mask, data)
                inner.set_loop_state(key, tf.where(mask, new, inner.loop_state(key)))
        new = ctx.broadcast(unit, ctx.output)
        value = tf.where(ctx.broadcast(self.mask, ctx.output), new, ctx.loop_state(_STATE))
        ctx.set_loop_state(_STATE, value)
        return value

    # --- all frames at once ---

    def _planned_frames(self, ctx: PlanContext, frames: Dim) -> MaskedPlan:
        kind = DimKind.LOOP if frames.is_loop else DimKind.SPATIAL
        packed = Dim(kind, None, "%s:masked" % ctx.node.path, auto=True)
        if not frames.is_loop:
            packed = ctx.bind(self.out_spatial_dim, packed)
        inputs = {}
        if self.sources:
            inputs["data"] = ctx.implicit("packed", PackLayer(frames, packed), [self.source, self.mask])
        all_masked = frames.is_loop or self.in_spatial_dim is not None
        for name in unit_references(self.unit, own_data=True) if all_masked else ():
            copy = {"output": {"class": "copy", "from": "base:" + name}}
            node = ctx.planner.subnetwork(ctx.node, copy, {}, ctx.node.scope)
            if frames in node.output.dims:
                pack = PackLayer(frames, packed)
                inputs[_key(name)] = ctx.implicit("packed " + name, pack, [node, self.mask])
        unit = self._plan_unit(ctx, inputs, packed if frames.is_loop else None)
        data = unit.result.output
        if not frames.is_loop:
            return MaskedPlan(data, packed, self._planned_initial(ctx, unit, data, packed))
        _check_fixed_shape(ctx, unit)
        layout = leading(data, batch_of(data, self.mask.output), packed)
        data = layout.with_dim(layout.dims.index(packed), frames)
        initial = self._planned_initial(ctx, unit, self._one_step(data))
        return MaskedPlan(data, None, initial, packed=layout, loop_dim=frames)

    def _emit_held(self, ctx: EmitContext, unit: Node, packed: Data, frames: Dim) -> Any:
        """Emit for each step the last selected frame up to it."""
        x = in_full_layout(ctx, unit, packed)
        batch = batch_of(packed)
        index = last_picked(picked(ctx, self.mask, batch, frames))
        initial = initial_in_layout(ctx, self.plan.initial, ctx.output, frames)
        initial = held_in_stream(ctx, ctx.output, frames, initial)
        y = spread(x[None], index, initial[None])[0] if batch is None else spread(x, index, initial)
        pass_on_held(ctx, ctx.output, frames, initial, y)
        return y

    def emit(self, ctx: EmitContext) -> Any:
        """Emit what was planned: one step, all steps, or only the selected frames."""
        plan, unit = self.plan, self.node.passes_on
        assert unit is not None
        if plan.stateful is not None:
            return self._emit_step(ctx, plan.stateful, unit)
        if plan.packed is not None and plan.loop_dim is not None:
            return self._emit_held(ctx, unit, plan.packed, plan.loop_dim)
        ctx.forward_aux(unit)
        return ctx.value(unit)


@dataclasses.dataclass(frozen=True)
class _Unit:
    """The planned unit: its output, all its layers, and its sources."""

    result: Node
    nodes: list[Node]
    sources: list[Node]


def _check_fixed_shape(ctx: PlanContext, unit: _Unit) -> None:
    """Reject a growing history axis in the output, which cannot be held from step to step."""
    for node in unit.nodes:
        history = node.layer.history
        if history is not None and history in unit.result.output.dims:
            raise ctx.error(
                "the output of the unit, %s, has the history %r of layer %r, which grows from step to step, so it "
                "cannot be kept where the mask is false. Let the unit reduce that axis, e.g. by attention over it."
                % (unit.result.output, history, node.path)
            )


def initial_in_layout(ctx: EmitContext, initial: HeldInitial, data: Data, frames: Dim) -> Any:
    """Return an initial output, broadcasting against ``data``."""
    axis = data.dims.index(frames)
    one = data.without_axes([axis])
    value = tf.convert_to_tensor(initial.emit(ctx, one))
    return value if value.shape.rank == 0 else tf.expand_dims(value, axis)


def _key(name: str) -> str:
    """Return the data key inside the unit for a layer of the loop whose selected frames it gets."""
    return "masked " + name


def own_frames(ctx: PlanContext, layer: Any) -> Optional[Dim]:
    """Return the dim that in_spatial_dim names; None if it means the steps of a loop, or is not given.

    :raises ConfigError: only one of in_spatial_dim and out_spatial_dim is given
    """
    dim: Optional[Dim] = layer.in_spatial_dim
    if (dim is None) != (layer.out_spatial_dim is None) and layer.masked_from is None:
        raise ctx.error(
            "in_spatial_dim and out_spatial_dim belong together: the axis with the frames, and the new dim of the "
            "selected ones. Give both."
        )
    mask = layer.mask.output if isinstance(layer.mask, Node) else None
    if dim is None or mask is None or means_steps(ctx, mask, dim):
        return None
    return dim


def time_of_source(ctx: PlanContext) -> Dim:
    """Return the time dim of the source.

    :raises ConfigError: there is none
    """
    if not ctx.node.sources:
        raise ctx.error("without a source it needs in_spatial_dim and out_spatial_dim here, outside of loops.")
    frames = ctx.single_source().time_dim
    if frames is None:
        raise ctx.error("the source %s has no time axis with frames to select." % ctx.single_source())
    return frames
