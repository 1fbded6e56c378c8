"""`masked_computation`: a layer that is computed only in the frames where a mask is true."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.options import OptionalLayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.option_types import InitialOutput
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.masked.held import (
    HeldPartLayer,
    HeldPlan,
    Selection,
    emit_held,
    initial_of_held,
    planned_held,
)
from returnn_tf.layers.masked.held_initial import KEYWORDS, HeldInitial, plan_held_initial
from returnn_tf.layers.masked.pack import PackLayer, PickedIndexLayer, check_mask
from returnn_tf.layers.masked.unit_on_zeros import UnitOnZeros
from returnn_tf.layers.nested.unit_network import unit_network, unit_references
from returnn_tf.layers.shared.loop_axis import means_steps
from returnn_tf.tensor import Data, Dim, DimKind


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedPlan(HeldPlan):
    """The plan of `MaskedComputationLayer`.

    :param sources: what the unit sees as its sources
    """

    sources: Sequence[Node] = ()


@register_layer("masked_computation")
class MaskedComputationLayer(Planned[MaskedPlan]):
    """``y = unit(x)`` in the frames where the mask is true; the unit never sees the others.

    The source is "data" in the unit, by default "data" of the network around. A unit that does not take "data" needs no
    source: it names layers itself, whose frames are selected likewise.

    In a loop, a step outside the mask keeps the output of the previous step, and so do all states inside the unit;
    before the first selected step the output is ``initial_output``, else the initial state of a recurrent unit, else
    zero. What does not depend on the loop is computed for all steps at once: only the selected frames, packed.

    If the unit is a subnetwork, ``<layer>/<inner>`` is a layer of it. It is held like the output, and before the first
    selected step it has its own ``initial_output``.

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
    steps_with_loop = True
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

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the unit has its own source, which defaults to "data"."""
        unit = options.get("unit")
        given = unit.get("from", "data") if isinstance(unit, Mapping) else "data"
        return "data" in (given if isinstance(given, (list, tuple)) else [given])

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of the enclosing network that the unit refers to."""
        yield from unit_references(options.get("unit"), own_data=cls.takes_data(options))

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
            check_mask(ctx, self.mask, None)
            inputs = {"data": self.source} if self.sources else {}
            if self.sources and PickedIndexLayer.suits(self.source.output, self.mask.output):
                inputs["data"] = ctx.implicit("picked", PickedIndexLayer(), [self.source, self.mask])
            return self._planned(ctx, Selection(self.mask), inputs)
        if isinstance(self.masked_from, Node):
            # Source and mask are not even computed: in training they may belong to an unknown alignment.
            ctx.node.deps = [dep for dep in ctx.node.deps if dep not in (*self.sources, self.mask)]
            ctx.depend(self.masked_from)
            dims = self.masked_from.output.dims
            selected = self.out_spatial_dim if self.out_spatial_dim in dims else self.masked_from.output.time_dim
            return self._planned(ctx, Selection(None, selected), {"data": self.masked_from})
        frames = own or ctx.loop_dim or time_of_source(ctx)
        check_mask(ctx, self.mask, frames)
        return self._planned_frames(ctx, frames)

    def _planned_frames(self, ctx: PlanContext, frames: Dim) -> MaskedPlan:
        kind = DimKind.LOOP if frames.is_loop else DimKind.SPATIAL
        packed = Dim(kind, None, "%s:masked" % ctx.node.path, auto=True)
        if not frames.is_loop:
            packed = ctx.bind(self.out_spatial_dim, packed)
        inputs = {}
        if self.sources:
            inputs["data"] = ctx.implicit("packed", PackLayer(frames, packed), [self.source, self.mask])
        all_masked = frames.is_loop or self.in_spatial_dim is not None
        for name in unit_references(self.unit, own_data=bool(self.sources)) if all_masked else ():
            copy = {"output": {"class": "copy", "from": "base:" + name}}
            node = ctx.planner.subnetwork(ctx.node, copy, {}, ctx.node.scope)
            if frames in node.output.dims:
                pack = PackLayer(frames, packed)
                inputs[_key(name)] = ctx.implicit("packed " + name, pack, [node, self.mask])
        return self._planned(ctx, Selection(self.mask, packed, frames if frames.is_loop else None), inputs)

    def _planned(self, ctx: PlanContext, selection: Selection, inputs: dict[str, Node]) -> MaskedPlan:
        """Plan the unit and its held output.

        :param inputs: of the unit, by data key
        """

        def outside(name: str) -> str:
            if name == "data" and self.sources:
                return name  # without a source, it is that of the network around
            return "data:" + _key(name) if _key(name) in inputs else "base:" + name

        network = unit_network(
            self.unit, outside, own_data=True, owner=lambda name: "base:" + name, where="the option 'unit'"
        )
        loop_dim = None if selection.steps is None else selection.selected
        unit = ctx.node.passes_on = ctx.subnetwork(network, inputs, loop_dim=loop_dim)
        nodes = self._unit_nodes(ctx)
        sources = [inputs["data"]] if "data" in inputs else []

        def plan_initial(data: Data) -> HeldInitial:
            on_zeros = UnitOnZeros(nodes, unit, sources, selection.selected)
            return plan_held_initial(ctx, self.initial_output, data, unit, self.unit, on_zeros)

        plan = planned_held(ctx, selection, unit, nodes, plan_initial)
        return MaskedPlan(**vars(plan), sources=sources)

    def _unit_nodes(self, ctx: PlanContext) -> list[Node]:
        """Return the layers of the unit that are planned."""
        unit = "%s/output" % self.node.path
        return [node for node in ctx.planner.planned_nodes if node.path == unit or node.path.startswith(unit + "/")]

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """Return a part of the unit, held as the output is."""
        unit, plan = self.node.passes_on, self.node.found
        if unit is None or not isinstance(plan, MaskedPlan):
            return None
        path = "%s/%s" % (self.node.path, name)
        for node in ctx.planner.planned_nodes:
            if isinstance(node.layer, HeldPartLayer) and node.path == path:
                return node
        known = set(self._unit_nodes(ctx))
        part = unit.layer.sub_node(PlanContext(unit, ctx.planner), name)
        if part is None and name in unit.sub_outputs:
            part = ctx.planner.sub_output(unit, name)
        if part is None or part is unit.passes_on:
            return self.node if part is not None else None
        nodes = self._unit_nodes(ctx)
        layer = HeldPartLayer(plan.selection, nodes, [node for node in nodes if node not in known], plan.sources)
        return ctx.planner.implicit_layer(self.node, name, layer, [part])

    def sub_names(self) -> Sequence[str]:
        """Return the names of the parts of the unit."""
        return () if self.node.passes_on is None else self.node.passes_on.layer.sub_names()

    def gives_initial_output(self) -> bool:
        """Return True: the value that is held until the mask is true."""
        return True

    def initial_output_value(self, ctx: EmitContext) -> Any:
        """Return the value of ``prev:`` in the first step of a loop."""
        return initial_of_held(ctx, self.plan)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit what was planned: one step, all steps, or only the selected frames."""
        unit = self.node.passes_on
        assert unit is not None
        return emit_held(ctx, self.plan, unit)


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
