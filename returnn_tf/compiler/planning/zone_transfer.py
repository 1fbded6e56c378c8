"""Values that cross the borders of the zones of a loop: sources, targets, ``prev:``, and what leaves the loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Optional

from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.initial_outputs import (
    initial_layer,
    names_layer,
    plan_initial_output,
    with_initial_axes,
)
from returnn_tf.compiler.planning.iterated_axis import IteratedAxis
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.rounds import KnownPrev, Round, RoundResult
from returnn_tf.compiler.planning.scope import Scope
from returnn_tf.compiler.planning.step_layers import StepLayers, rec_layer
from returnn_tf.compiler.planning.sub_output import SubOutputLayer
from returnn_tf.compiler.planning.zones import Zone
from returnn_tf.config import did_you_mean
from returnn_tf.graph.hidden_state import hidden_state_of
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.hidden_state import GetLastHiddenStateLayer
from returnn_tf.layers.rec.state import LastStateLayer, carried_state_of
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
from returnn_tf.tensor import Beam, Data


class ZoneTransfer:
    """Converts values where they cross a border of a loop, each of them once.

    :param owner: the `rec` layer
    :param parent: plans the enclosing network
    :param scope: of the step network
    :param layers: its layers, with their zones
    :param axis: the axis that the loop runs over
    :param planners: the planner of each zone; that of the step is another one in each round
    """

    def __init__(
        self,
        owner: Node,
        parent: NetworkPlanner,
        scope: Scope,
        layers: StepLayers,
        axis: IteratedAxis,
        planners: Mapping[Zone, NetworkPlanner],
    ) -> None:
        self._owner, self._parent, self._scope = owner, parent, scope
        self._layers, self._axis, self._planners = layers, axis, planners
        self._zones = layers.zones.zones
        self.loop_dim = loop_dim_for(axis.time_dim)
        #: Of the layers of the step; another one in each round.
        self.round = Round(RoundResult(), strict=False)
        self._accums: dict[Node, Node] = {}
        self._shifts: dict[tuple[str, Zone], Node] = {}
        self._entered: Optional[Node] = None
        self._targets: dict[str, Node] = {}
        self._run: Optional[Node] = None
        self._loop_layer: Optional[LoopRunLayer] = None
        self._beam: Optional[Beam] = None

    def set_run(self, run: Node, layer: LoopRunLayer, beam: Optional[Beam]) -> None:
        """Set what runs the loop; from now on, values of the step can leave it.

        :param beam: the search in the loop, if there is one
        """
        self._run, self._loop_layer, self._beam = run, layer, beam

    def _add(self, planner: NetworkPlanner, name: str, layer: Layer, *sources: Node) -> Node:
        """Plan a node that the config does not name."""
        return planner.implicit_layer(self._owner, name, layer, sources)

    # --- into the loop ---

    def source(self, to: Zone, where: str) -> Node:
        """Return the source of the loop: all steps, or the current one."""
        axis, dim = self._axis.source_axis, self._axis.source_dim
        if axis is None or dim is None:
            raise LayerError("%s: the loop has no source, so there is no 'data:source'." % where, topic="loops")
        if self._entered is None:
            source = rec_layer(self._owner).input_node(PlanContext(self._owner, self._parent))
            loop_dim = loop_dim_for(dim) if self._layers.has_end else self.loop_dim
            declared = self._axis.time_dim if self._layers.knows_axis else None
            self._entered = self._add(self._parent, "source", EnterLayer(axis, loop_dim, declared), source)
        return self.transfer(self._entered, Zone.BEFORE, to)

    def target(self, to: Zone, key: str) -> Optional[Node]:
        """Return the label of the current step if a data key is the target of the loop in this mode, else None."""
        if self._parent.search or self._layers.has_end or key not in self._owner.layer.target_names:
            return None
        if key not in self._targets:
            node = self._parent.target_node(self._owner, key)
            axis = node.output.time_axis
            if axis is None:
                return None
            self._targets[key] = self._add(self._parent, "target " + key, EnterLayer(axis, self.loop_dim), node)
        return self.transfer(self._targets[key], Zone.BEFORE, to)

    # --- from zone to zone ---

    def transfer(self, node: Node, zone: Zone, to: Zone) -> Node:
        """Return a node of one zone for use in another."""
        if zone is to or (zone is Zone.BEFORE and to is Zone.AFTER):
            return node
        if to is Zone.STEP:
            loop_dim = (
                self._entered.output.dims[self._axis.source_axis or 0] if node is self._entered else self.loop_dim
            )
            if loop_dim not in node.output.dims:
                return node
            slices = self.round.slices
            if node not in slices:
                layer = StepSliceLayer(loop_dim)
                slices[node] = self._add(self._planners[to], "slice of " + node.path, layer, node)
            return slices[node]
        assert zone is Zone.STEP and to is Zone.AFTER and self._run is not None, (node, zone, to)
        if node not in self._accums:
            assert self._loop_layer is not None
            self._loop_layer.collect(node)
            layer_of_all = AccumLayer(node, self.loop_dim, self._beam)
            self._accums[node] = self._add(self._parent, "all of " + node.path, layer_of_all, self._run)
        return self._accums[node]

    def zone_of(self, name: str, where: str) -> Zone:
        """Return the zone of a layer of the loop.

        :raises LayerError: it is not computed, since nothing needs it in this mode
        """
        zone = self._zones.get(name)
        if zone is None:
            raise LayerError(
                "%s: layer %r of the loop is not computed in this mode, as no output needs it." % (where, name),
                topic="loops",
            )
        return zone

    def prev(self, to: Zone, ref: str, where: str) -> Node:
        """Return ``prev:<ref>`` for a layer of a zone."""
        name = self._scope.layer_of(ref)
        if name is None:
            raise LayerError(
                "%s: there is no layer %r in the loop, so 'prev:%s' is undefined. %s"
                % (where, ref, ref, did_you_mean(ref, self._scope.specs)),
                topic="loops",
            )
        zone = self.zone_of(name, where)
        if zone is Zone.STEP and to is Zone.STEP:
            prevs = self.round.prevs
            if ref not in prevs:
                if not self.round.known.templates:
                    given = self._layers.specs[name].options.get("initial_output")
                    self.round.lacks_axes |= name != ref or names_layer(given)
                prevs[ref] = self._add(self._planners[to], "prev:" + ref, self._known_prev(name, ref))
            return prevs[ref]
        home = zone if zone is not Zone.STEP else Zone.AFTER
        if (ref, home) not in self._shifts:
            inner = self.part(zone, ref)
            value = self.transfer(inner, zone, home)
            frame = self.prev_template(zone, ref, inner, guessed=False)
            initial = self.initial_output(zone, ref, inner, frame)
            sources = [value] + ([initial.node] if initial.node is not None else [])
            shift = ShiftLayer(self.loop_dim, initial, frame)
            self._shifts[ref, home] = self._add(self._parent, "prev:" + ref, shift, *sources)
        return self.transfer(self._shifts[ref, home], home, to)

    def _known_prev(self, name: str, ref: str) -> KnownPrev:
        """Return ``prev:<ref>`` as the round before knows it, else as the layer was planned in this round already.

        So a chain of such values needs no round for each link, if its layers are planned in their order.
        """
        known = self.round.known.prev(ref)
        node = self._planners[Zone.STEP].planned(name) if name == ref and not known.is_known else None
        if node is None or node.output.unknown or node.path in self.round.guessed:
            return known
        if names_layer(self._layers.specs[name].options.get("initial_output")):
            return known  # the axes of that layer may be more
        return KnownPrev(ref, self._of_one_step(node.output), carried_state_of(node))

    def _of_one_step(self, data: Data) -> Data:
        """Return a template without the axis of the steps of this loop; all steps of a loop around may be in it."""
        return data.without_axes([i for i in data.loop_axes if data.dims[i] is self.loop_dim])

    def part(self, zone: Zone, ref: str) -> Node:
        """Return the layer of the loop, or its part such as "output/out_1", that ``prev:<ref>`` names."""
        return self._planners[zone].resolve(ref, "Layer %r" % self._owner.path)

    def prev_template(self, zone: Zone, ref: str, node: Node, *, guessed: bool) -> Data:
        """Return the template of ``prev:<ref>`` in a step.

        :param node: the layer
        :param guessed: see `with_initial_axes`
        """
        initial = initial_layer(self._planners[zone], self._scope, self._zones, self._spec_of_initial(ref, node))
        data = self._of_one_step(node.output)
        return data if initial is None else with_initial_axes(data, initial.output, guessed=guessed)

    def initial_output(self, zone: Zone, ref: str, node: Node, prev: Data) -> InitialOutput:
        """Return the value in the first step. A part of a layer takes the option of the layer.

        :param prev: the template of ``prev:<ref>`` in a step
        """
        spec = self._spec_of_initial(ref, node)
        return plan_initial_output(self._planners[zone], self._scope, self._zones, spec, node, prev)

    def _spec_of_initial(self, ref: str, node: Node) -> LayerSpec:
        name = self._scope.layer_of(ref)
        assert name is not None
        spec = self._layers.specs[name]
        if name != ref and not isinstance(node.layer, SubOutputLayer):
            given = {} if node.layer.initial_output is None else {"initial_output": node.layer.initial_output}
            spec = dataclasses.replace(spec, name=ref, path=node.path, options=given)
        return spec

    # --- out of the loop ---

    def exit(self, name: str) -> Node:
        """Return the value of a layer, or its part, for all steps, seen from outside, with what its loss needs."""
        ref = "layer:" + name
        layer = self._scope.layer_of(ref)
        assert layer is not None
        zone = self._zones[layer]
        planned = self._planners[zone].planned_nodes
        before = len(planned)
        inner = self.part(zone, ref)
        if zone is Zone.STEP:
            self._join_step(planned[before:], inner)
        node = self.exit_of(inner, zone, name)
        state = hidden_state_of(inner)
        if state is not None:
            node.hidden_state = state
            node.plan_state = functools.lru_cache(lambda: self._last_state(zone, name, inner))
        return node

    def _join_step(self, late: Sequence[Node], inner: Node) -> None:
        """Add to the step what was planned after the loop, for the sake of a part that only others need.

        :param late: the nodes, with the part
        :param inner: the part
        :raises LayerError: the step would have to read more from outside, or from the previous step
        """
        assert self._run is not None
        known = {*self._run.inner, *self._run.deps, *late}
        inputs = {*self.round.slices.values(), *self.round.prevs.values()}
        if not inputs.isdisjoint(late) or not all(known.issuperset(node.deps) for node in late):
            raise LayerError(
                "Layer %r of loop %r is not computed in this mode, as no layer of the loop needs it. Give it "
                "'is_output_layer': True." % (inner.path, self._owner.path),
                topic="loops",
            )
        self._run.inner.extend(late)

    def exit_of(self, inner: Node, zone: Zone, name: str) -> Node:
        """Return the value for all steps of a node of a zone, with what its loss needs.

        :param name: relative to the loop
        """
        layer = ExitLayer(self.loop_dim, self._axis.time_dim)
        for option in ("target", "loss_scale", "loss_opts", "loss"):
            setattr(layer, option, getattr(inner.layer, option))
        return self._add(self._parent, name, layer, self.transfer(inner, zone, Zone.AFTER))

    def _last_state(self, zone: Zone, name: str, inner: Node) -> Node:
        """Return a node with the hidden state of a layer of the loop after the last step of each sequence."""
        if zone is not Zone.STEP:
            return inner  # it runs over all steps at once
        assert self._run is not None
        state = self._add(self._planners[zone], "state of " + name, GetLastHiddenStateLayer(), inner)
        self._run.inner.append(state)
        after = self.transfer(state, zone, Zone.AFTER)
        steps = self._add(self._parent, "states of " + name, ExitLayer(self.loop_dim, self._axis.time_dim), after)
        return self._add(self._parent, "last state of " + name, LastStateLayer(inner), steps)
