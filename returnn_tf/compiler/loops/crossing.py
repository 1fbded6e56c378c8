"""Values that cross the borders of the zones of a loop: sources, targets, ``prev:``, and what leaves the loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.compiler.loops.analysis import Zone, Zones
from returnn_tf.compiler.loops.hints import warn_of_loop
from returnn_tf.compiler.loops.initial import plan_initial_output
from returnn_tf.compiler.loops.iterated_axis import iterated_axis, knows_axis
from returnn_tf.compiler.loops.rounds import Findings
from returnn_tf.compiler.loops.step_layers import StepLayers
from returnn_tf.compiler.loops.zone_builder import ZoneBuilder
from returnn_tf.compiler.planning.builder import NetworkBuilder
from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.parse import LayerSpec, join_scope
from returnn_tf.compiler.planning.sub_output import SubOutputLayer
from returnn_tf.config import did_you_mean
from returnn_tf.graph.hidden_state import hidden_state_of
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.hidden_state import GetLastHiddenStateLayer
from returnn_tf.layers.rec.state import LastStateLayer
from returnn_tf.loops.frame import LoopRunLayer
from returnn_tf.loops.nodes import (
    AccumLayer,
    EnterLayer,
    ExitLayer,
    ShiftLayer,
    StepSliceLayer,
    loop_dim_for,
)
from returnn_tf.loops.plan import InitialOutput
from returnn_tf.tensor import Beam, Dim


class Crossing:
    """The zones of a step network, and the values that cross their borders.

    :param owner: the `rec` layer, with its sources
    :param parent: plans the enclosing network
    """

    def __init__(self, owner: Node, parent: NetworkBuilder) -> None:
        self.owner = owner
        self.parent = parent
        layer: Any = owner.layer  # a RecLayer
        self.layer = layer
        self.network: dict[str, Any] = layer.unit
        self.scope = owner.scope if self.layer.name_scope is not None else join_scope(owner.scope, "rec")
        self.specs: dict[str, LayerSpec] = parent.state.parse(self.network, owner.path)
        if "output" not in self.specs:
            raise LayerError(
                "Layer %r: the unit has no layer 'output'. %s" % (owner.path, did_you_mean("output", self.specs))
            )
        state = parent.state
        self.layers = StepLayers(
            layer,
            bool(owner.sources),
            self.specs,
            losses=state.loop_losses,
            search=parent.search,
            knows_axis=knows_axis(owner, parent, self.specs),
            whole=owner.path in state.whole_loops,
        )
        warn_of_loop(owner.path, self.layers)
        state.omitted_losses.update(dict.fromkeys(self.layers.omitted_losses()))
        self.zones: Zones = self.layers.zones
        self._axis = iterated_axis(owner, parent, self.layers)
        self.time_dim: Dim = self._axis.time_dim
        self.loop_dim: Dim = loop_dim_for(self.time_dim)
        self.builders: dict[Zone, ZoneBuilder] = {}
        self._found = Findings()
        self._guessed: set[str] = set()
        self._prevs: dict[str, Node] = {}
        self._slices: dict[Node, Node] = {}
        self._accums: dict[Node, Node] = {}
        self._shifts: dict[tuple[str, Zone], Node] = {}
        self._entered: Optional[Node] = None
        self._targets: dict[str, Node] = {}
        self._run: Optional[Node] = None
        self._loop_layer: Optional[LoopRunLayer] = None
        self._beam: Optional[Beam] = None
        self._length_deps: list[Node] = []
        self._limit: Any = None

    def add(self, builder: NetworkBuilder, name: str, layer: LayerBase, sources: Sequence[Node]) -> Node:
        """Plan a node that the config does not name."""
        return builder.implicit_layer(self.owner, name, layer, sources)

    def source_in(self, builder: ZoneBuilder, where: str) -> Node:
        """Return the source of the loop: all steps, or the current one."""
        axis, dim = self._axis.source_axis, self._axis.source_dim
        if axis is None or dim is None:
            raise LayerError("%s: the loop has no source, so there is no 'data:source'." % where)
        if self._entered is None:
            source = self.layer.input_node(PlanContext(self.owner, self.parent))
            loop_dim = loop_dim_for(dim) if self.layers.has_end else self.loop_dim
            self._entered = self.add(self.parent, "source", EnterLayer(axis, loop_dim), [source])
        return self.bring(self._entered, Zone.BEFORE, builder)

    def target_in(self, builder: ZoneBuilder, key: str) -> Optional[Node]:
        """Return the label of the current step if a data key is the target of the loop in this mode, else None."""
        if self.parent.search or self.layers.has_end or key not in self.layer.target_names:
            return None
        if key not in self._targets:
            node = self.parent.target_node(self.owner, key)
            axis = node.output.time_axis
            if axis is None:
                return None
            self._targets[key] = self.add(self.parent, "target " + key, EnterLayer(axis, self.loop_dim), [node])
        return self.bring(self._targets[key], Zone.BEFORE, builder)

    def bring(self, node: Node, zone: Zone, builder: ZoneBuilder) -> Node:
        """Return a node of one zone for use in another."""
        if zone is builder.zone or (zone is Zone.BEFORE and builder.zone is Zone.AFTER):
            return node
        if builder.zone is Zone.STEP:
            loop_dim = (
                self._entered.output.dims[self._axis.source_axis or 0] if node is self._entered else self.loop_dim
            )
            if loop_dim not in node.output.dims:
                return node
            if node not in self._slices:
                self._slices[node] = self.add(builder, "slice of " + node.path, StepSliceLayer(loop_dim), [node])
            return self._slices[node]
        assert zone is Zone.STEP and builder.zone is Zone.AFTER and self._run is not None, (node, zone, builder.zone)
        if node not in self._accums:
            assert self._loop_layer is not None
            self._loop_layer.collect(node)
            self._accums[node] = self.add(
                self.parent, "all of " + node.path, AccumLayer(node, self.loop_dim, self._beam), [self._run]
            )
        return self._accums[node]

    def zone_of(self, name: str, where: str) -> Zone:
        """Return where a layer of the loop is computed.

        :raises LayerError: nowhere, since nothing needs it in this mode
        """
        zone = self.zones.zones.get(name)
        if zone is None:
            raise LayerError(
                "%s: layer %r of the loop is not computed in this mode, as no output needs it." % (where, name)
            )
        return zone

    def prev(self, builder: ZoneBuilder, ref: str, where: str) -> Node:
        """Return ``prev:<ref>`` for a layer of this builder's zone."""
        name = builder.any_name(ref)
        if name is None:
            raise LayerError(
                "%s: there is no layer %r in the loop, so 'prev:%s' is undefined. %s"
                % (where, ref, ref, did_you_mean(ref, self.specs))
            )
        zone = self.zone_of(name, where)
        if zone is Zone.STEP and builder.zone is Zone.STEP:
            if ref not in self._prevs:
                self._prevs[ref] = self.add(builder, "prev:" + ref, self._found.prev(ref), [])
            return self._prevs[ref]
        home = zone if zone is not Zone.STEP else Zone.AFTER
        if (ref, home) not in self._shifts:
            inner = self._part(self.builders[zone], ref)
            value = self.bring(inner, zone, self.builders[home])
            initial = self._initial_output(self.builders[zone], ref, inner)
            sources = [value] + ([initial.node] if initial.node is not None else [])
            shift = ShiftLayer(self.loop_dim, initial)
            self._shifts[ref, home] = self.add(self.parent, "prev:" + ref, shift, sources)
        return self.bring(self._shifts[ref, home], home, builder)

    def _part(self, builder: ZoneBuilder, ref: str) -> Node:
        """Return the layer of the loop, or its part such as "output/out_1", that ``prev:<ref>`` names."""
        return builder.resolve(ref, "Layer %r" % self.owner.path)

    def _initial_output(self, builder: ZoneBuilder, ref: str, node: Node) -> InitialOutput:
        """Return the value in the first step. A part that is no layer of its own takes the option of its layer."""
        name = builder.any_name(ref)
        assert name is not None
        spec = self.specs[name]
        if name != ref and not isinstance(node.layer, SubOutputLayer):
            given = {} if node.layer.initial_output is None else {"initial_output": node.layer.initial_output}
            spec = dataclasses.replace(spec, name=ref, path=node.path, options=given)
        return plan_initial_output(builder, spec, node)

    def _exit(self, name: str) -> Node:
        """Return the value of a layer for all steps, seen from outside, with the auxiliary values for its loss."""
        zone = self.zones.zones[name]
        inner = self.builders[zone].node(name)
        node = self._exit_of(inner, zone, name)
        state = hidden_state_of(inner)
        if state is not None:
            node.layer.hidden_state = state
            node.layer.plan_state = functools.lru_cache(lambda: self._last_state(name))
        return node

    def _exit_of(self, inner: Node, zone: Zone, name: str) -> Node:
        """Return the value for all steps of a node of a zone, with what its loss needs.

        :param name: relative to the loop
        """
        layer = ExitLayer(self.loop_dim, self.time_dim)
        node = self.add(self.parent, name, layer, [self.bring(inner, zone, self.builders[Zone.AFTER])])
        for option in ("target", "loss_scale", "loss_opts", "loss"):
            setattr(layer, option, getattr(inner.layer, option))
        return node

    def _last_state(self, name: str) -> Node:
        """Return a node with the hidden state of a layer of the loop after the last step of each sequence."""
        zone = self.zones.zones[name]
        inner = self.builders[zone].node(name)
        if zone is not Zone.STEP:
            return inner  # it runs over all steps at once
        assert self._run is not None
        state = self.add(self.builders[zone], "state of " + name, GetLastHiddenStateLayer(), [inner])
        self._run.inner.append(state)
        after = self.bring(state, zone, self.builders[Zone.AFTER])
        steps = self.add(self.parent, "states of " + name, ExitLayer(self.loop_dim, self.time_dim), [after])
        return self.add(self.parent, "last state of " + name, LastStateLayer(inner), [steps])
