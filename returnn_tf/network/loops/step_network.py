"""Planning of the network inside a `rec` layer: what runs before, in and after the loop, and what the loop carries."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.graph.hidden_state import hidden_state_of, recurrent_node
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.loops.loop_nodes import (
    AccumLayer,
    EnterLayer,
    ExitLayer,
    InitialOutput,
    LoopLengthLayer,
    ShiftLayer,
    StepSliceLayer,
    loop_dim_for,
)
from returnn_tf.layers.loops.loop_plan import Ending, LoopPlan
from returnn_tf.layers.loops.loop_run import LoopRunLayer
from returnn_tf.layers.rec.hidden_state import GetLastHiddenStateLayer
from returnn_tf.layers.rec.state import LastStateLayer, carried_state_of
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.network.loops.analysis import Zone, Zones, reachable
from returnn_tf.network.loops.guess import nested_size
from returnn_tf.network.loops.hints import warn_of_loop
from returnn_tf.network.loops.initial import plan_initial_output
from returnn_tf.network.loops.iterated_axis import iterated_axis, knows_axis
from returnn_tf.network.loops.kept_beams import check_kept_beams
from returnn_tf.network.loops.max_steps import plan_limit
from returnn_tf.network.loops.rounds import MAX_ROUNDS, Findings, same_template
from returnn_tf.network.loops.step_layers import StepLayers
from returnn_tf.network.loops.zone_builder import ZoneBuilder
from returnn_tf.network.planning.builder import NetworkBuilder
from returnn_tf.network.planning.checks import LayerError
from returnn_tf.network.planning.parse import LayerSpec, join_scope
from returnn_tf.network.planning.sub_output import SubOutputLayer
from returnn_tf.tensor import Beam, Data, Dim, batch_dim
from returnn_tf.tensor.precision import float_dtype


def plan_step_network(owner: Node, parent: NetworkBuilder) -> Node:
    """Return the output of the network inside a `rec` layer, for all steps.

    :param owner: the `rec` layer
    :param parent: plans the enclosing network
    """
    return StepNetwork(owner, parent).plan()


class StepNetwork:
    """One step network while it is planned.

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
        self._loop: Optional[LoopPlan] = None
        self._beam: Optional[Beam] = None
        self._length_deps: list[Node] = []
        self._limit: Any = None

    # --- planning ---

    def plan(self) -> Node:
        """Plan all zones and return the output for all steps."""
        self.parent.state.inner_owners[self.owner] = self._owner_of_params
        self._plan_limit()
        for zone in Zone:
            self.builders[zone] = ZoneBuilder(self, zone, self.network, self.parent)
        step_layers = [name for name, zone in self.zones.zones.items() if zone is Zone.STEP]
        for name, zone in self.zones.zones.items():
            if zone is Zone.BEFORE:
                self.builders[zone].node(name)
        values, params = self.layers.outside_references()
        for ref in values:
            outside = self.parent.resolve_if_right(ref, "Layer %r" % self.owner.path)
            if outside is not None:
                self.owner.depend(outside)
        for ref in params:
            find = functools.partial(self.parent.resolve_if_right, ref, "Layer %r" % self.owner.path)
            self.parent.state.late_owners.append((self.owner, find))
        if step_layers:
            self._plan_step(step_layers)
        exits = {name: self._exit(name) for name in self.layers.outputs}
        for name in self.layers.outputs:
            spec = self.specs[name]
            is_output = bool(spec.options.get("is_output_layer"))
            self.parent.add_result(spec, exits[name], is_output=is_output, with_loss=self.layers.with_loss(spec))
        for result in self.builders[Zone.STEP].step_results or ():
            inside = self._exit_of(result.node, Zone.STEP, result.spec.path[len(self.owner.path) + 1 :])
            self.parent.add_result(result.spec, inside, is_output=result.is_output, with_loss=result.with_loss)
        self.layer.exits = exits
        self.layer.inner = exits["output"]
        return exits["output"]

    def _owner_of_params(self, ref: str, where: str) -> Node:
        """Return a layer of the loop for a name in ``reuse_params`` of a layer outside."""
        return self.builders[Zone.AFTER].owner_of_params(ref, where)

    def _plan_step(self, names: Sequence[str]) -> None:
        """Plan the layers of a step in rounds, see `returnn_tf.network.loops.rounds`."""
        strict = False
        self._found = Findings(guessed=frozenset(names))
        errors: list[ConfigError] = []
        for _ in range(MAX_ROUNDS):
            builder = self.builders[Zone.STEP] = ZoneBuilder(self, Zone.STEP, self.network, self.parent)
            self._prevs, self._slices, self._guessed = {}, {}, set()
            builder.strict = strict
            self._plan_layers(builder, names, errors)
            errors = builder.errors
            nodes = {name: self._part(builder, name) for name in self._prevs}
            settled = all(same_template(node.output, self._prevs[name].output) for name, node in nodes.items())
            complete = not self._guessed and not any(prev.output.unknown for prev in self._prevs.values())
            if settled and (strict or complete):
                break
            strict = complete or (settled and self._guessed == self._found.guessed)
            self._found = Findings(
                {name: node.output for name, node in nodes.items()},
                {name: carried_state_of(node) for name, node in nodes.items()},
                frozenset(self._guessed),
            )
            self._drop_nested(builder)
        else:
            raise LayerError(
                "Layer %r: the dims of 'prev:%s' do not converge: each step changes its shape."
                % (self.owner.path, "', 'prev:".join(self._prevs))
            )
        self._make_run(builder)

    def _plan_layers(self, builder: ZoneBuilder, names: Sequence[str], errors: Sequence[ConfigError]) -> None:
        """Plan the layers of a step.

        :param errors: of the previous round, more informative than those of layers that lack the value of ``prev:``
        """
        try:
            for name in names:
                builder.node(name)
        except ConfigError:
            if builder.strict and errors:
                raise errors[0] from None
            raise

    def _drop_nested(self, builder: ZoneBuilder) -> None:
        for node in builder.sink:
            self.parent.state.nested.pop(node, None)

    def _make_run(self, builder: ZoneBuilder) -> None:
        """Return the node that runs the loop."""
        nodes = {name: self._part(builder, name) for name in self._prevs}
        initials = {name: self._initial_output(builder, name, nodes[name]) for name in self._prevs}
        loop = LoopPlan(
            self.loop_dim,
            self.owner.path,
            self._ending(builder),
            prevs=[(self._prevs[n], nodes[n], initials[n]) for n in self._prevs],
            slices=list(self._slices.items()),
            choices=[n for n in builder.sink if isinstance(n.layer, ChoiceLayer) and n.layer.searches],
            zones={n: (z.value, self.zones.reasons.get(n, "")) for n, z in self.zones.zones.items()},
            checkpoint_steps=bool(self.layer.checkpoint_steps),
            swap_memory=bool(self.layer.swap_memory),
            back_prop=self.layer.back_prop is not False,
            source_dim=None if self._axis.known else self._axis.source_dim,
        )
        if loop.choices:
            check_kept_beams(loop.choices)
            self._beam = Beam(loop.beam_size, self.owner.path)
        for name, prev in self._prevs.items():
            if carried_state_of(nodes[name]) is not None:
                prev.layer.state_of = recurrent_node(nodes[name])  # type: ignore[attr-defined]
        run = Node("%s/loop" % self.owner.path, LoopRunLayer(loop), self.scope)
        run.in_search = self.parent.search
        run.inner = list(builder.sink)
        loop.constrained = self._constrained(run.inner)
        self._check_kept(run.inner)
        inner = set(run.inner)
        for node in [*run.inner, *self._slices]:
            for dep in node.deps if node in inner else [node]:
                if dep not in inner:
                    run.depend(dep)
        for initial in initials.values():
            if initial.node is not None:
                run.depend(initial.node)
        for dep in self._length_deps:
            run.depend(dep)
        if loop.ending.time_dim is None:
            known = self.parent.node_with_dim(run, self.time_dim)
            if known is not None:  # determines the number of steps, even if no step uses it otherwise
                run.depend(known)
        run.output = Data((), "int32")
        self.parent.sink.append(run)
        self._run, self._loop = run, loop

    def _check_kept(self, nodes: Sequence[Node]) -> None:
        """Check that layers which keep a state from batch to batch do so once in a batch, not in each step."""
        for node in nodes:
            if node.kept and (self.parent.in_step or not node.loop_states):
                raise LayerError(
                    "Layer %r: a state can't be kept from batch to batch here, as the layer begins anew in each step "
                    "of a loop. Set its initial_state to 'zeros'." % node.path
                )

    def _constrained(self, nodes: Sequence[Node]) -> list[tuple[Node, str]]:
        """Return which options constrain the outputs of layers of a step; a search has no objective."""
        options = ("darc1", "spatial_smoothing")
        found = [] if self.parent.search else [(n, name) for n in nodes for name in options if getattr(n.layer, name)]
        if found and self.parent.in_step:
            raise LayerError(
                "Layer %r: %s is not supported in a loop that runs in the step of another loop. Use it on a layer of "
                "the outer loop, or outside." % (found[0][0].path, found[0][1])
            )
        return found

    def _ending(self, builder: ZoneBuilder) -> Ending:
        """Return when the loop ends."""
        include_eos = bool(self.layer.include_eos)
        if not self.layers.has_end:
            return Ending(None, include_eos, None, None)
        end = builder.node("end")
        if end.output.dtype != "bool" or end.output.rank > (0 if end.output.batch_axis is None else 1):
            raise LayerError("Layer %r: 'end' must be a bool per sequence, it is %s." % (end.path, end.output))
        self._check_end(builder, end)
        if self._limit is None and self._axis.source_dim is None:
            raise LayerError(
                "Layer %r: a loop that ends by its layer 'end' needs the option max_seq_len, so that it always "
                "terminates. Give a number or e.g. \"max_len_from('base:encoder')\"." % self.owner.path
            )
        return Ending(end, include_eos, self._limit, self.time_dim)

    def _check_end(self, builder: ZoneBuilder, end: Node) -> None:
        """Check that in search the end distinguishes hypotheses."""
        choices = [n for n in builder.sink if isinstance(n.layer, ChoiceLayer) and n.layer.searches]
        if not choices:
            return
        names = {name for name, spec in self.layers.specs.items() if issubclass(spec.cls, ChoiceLayer)}
        found = reachable(["end"], lambda name: [*self.layers.links[name].now, *self.layers.links[name].prev])
        if not found & names:
            raise LayerError(
                "Layer %r: 'end' does not depend on the choice %r, so it can't tell which hypothesis ends. Make it "
                "depend on the label, e.g. 'end': {'class': 'compare', 'from': %r, 'value': 0}, or, if the number of "
                "steps is known, give the loop a source or the option 'axis' instead of 'end'."
                % (end.path, choices[-1].path, choices[-1].path.rpartition("/")[2])
            )

    def _plan_limit(self) -> None:
        """Plan the options max_seq_len and max_seq_len_via.

        Their layers are part of the network even where they have no effect, as in training.
        """
        limit = plan_limit(self.owner, self.parent)
        if limit is None:
            return
        self._limit = limit.steps
        for node in limit.nodes:
            self._length_deps.append(node)
            self.owner.depend(node)
        if not self.layers.has_end and not self._axis.known:
            # Then it is the number of steps of all sequences.
            length = self.add(self.parent, "length", LoopLengthLayer(self.time_dim, limit.steps), limit.nodes)
            self._length_deps.append(length)
            self.owner.depend(length)

    def guess(self, node: Node, ctx: PlanContext) -> Data:
        """Guess the output of a layer with unknown sources: a vector per sequence, if its size is known."""
        layer = node.layer
        self._guessed.add(node.path)
        if layer.n_out is None and layer.out_dim is None and ctx.target_dim() is None:
            size = nested_size(layer)
            if size is None:
                return Data((), unknown=True)
            layer.n_out = size
        batch = next((d for s in node.deps for d in s.output.dims if d.is_batch), batch_dim)
        out = ctx.out_feature()
        return Data((batch, out), float_dtype(), feature_axis=1)

    # --- from zone to zone ---

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
            assert self._loop is not None
            if node not in self._loop.collected:
                self._loop.collected.append(node)
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
        layer: Any = node.layer
        state = hidden_state_of(inner)
        if state is not None:
            layer.hidden_state, layer.plan_state = state, functools.lru_cache(lambda: self._last_state(name))
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
