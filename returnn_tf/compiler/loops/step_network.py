"""Planning of the network inside a `rec` layer: what runs before, in and after the loop, and what the loop carries."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from returnn_tf.compiler.loops.analysis import Zone
from returnn_tf.compiler.loops.endings import Endings
from returnn_tf.compiler.loops.guess import nested_size
from returnn_tf.compiler.loops.rounds import MAX_ROUNDS, Findings, same_template
from returnn_tf.compiler.loops.zone_builder import ZoneBuilder
from returnn_tf.compiler.planning.builder import NetworkBuilder
from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.config import ConfigError
from returnn_tf.graph.hidden_state import recurrent_node
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.state import carried_state_of
from returnn_tf.layers.search.loop_search import loop_search
from returnn_tf.loops.frame import LoopRunLayer
from returnn_tf.loops.plan import Ending, LoopPlan, PreviousValue
from returnn_tf.tensor import Beam, Data, batch_dim
from returnn_tf.tensor.precision import float_dtype


def plan_step_network(owner: Node, parent: NetworkBuilder) -> Node:
    """Return the output of the network inside a `rec` layer, for all steps.

    :param owner: the `rec` layer
    :param parent: plans the enclosing network
    """
    return StepNetwork(owner, parent).plan()


class StepNetwork(Endings):
    """One step network while it is planned.

    :param owner: the `rec` layer, with its sources
    :param parent: plans the enclosing network
    """

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
        """Plan the layers of a step in rounds, see `returnn_tf.compiler.loops.rounds`."""
        strict = False
        self._found = Findings(guessed=frozenset(names))
        errors: list[ConfigError] = []
        for _ in range(MAX_ROUNDS):
            builder = self.builders[Zone.STEP] = ZoneBuilder(self, Zone.STEP, self.network, self.parent)
            self._prevs, self._slices, self._guessed = {}, {}, set()
            builder.strict = strict
            self._plan_layers(builder, names, errors)
            errors = builder.errors or builder.doubtful or builder.vague
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
        """Make the node that runs the loop."""
        nodes = {name: self._part(builder, name) for name in self._prevs}
        prevs = [self._previous_value(builder, name, node) for name, node in nodes.items()]
        ending = self._ending(builder)
        inner = list(builder.sink)
        search = loop_search(inner, ending)
        constrained = self._constrained(inner)
        self._check_kept(inner)
        deps = self._outside(inner, [prev.initial.node for prev in prevs if prev.initial.node is not None])
        length_deps = self._nodes_of_length(deps, ending)
        loop = LoopPlan(
            self.loop_dim,
            self.owner.path,
            ending,
            prevs=tuple(prevs),
            slices=tuple(self._slices.items()),
            search=search,
            zones={n: (z.value, self.zones.reasons.get(n, "")) for n, z in self.zones.zones.items()},
            checkpoint_steps=bool(self.layer.checkpoint_steps),
            swap_memory=bool(self.layer.swap_memory),
            back_prop=self.layer.back_prop is not False,
            source_dim=None if self._axis.known else self._axis.source_dim,
            length_deps=tuple(length_deps),
            constrained=tuple(constrained),
        )
        if search is not None:
            self._beam = Beam(search.beam_size, self.owner.path)
        self._loop_layer = LoopRunLayer(loop)
        run = Node("%s/loop" % self.owner.path, self._loop_layer, self.scope)
        run.in_search = self.parent.search
        run.inner = inner
        for dep in [*deps, *length_deps]:
            run.depend(dep)
        run.output = Data((), "int32")
        self.parent.sink.append(run)
        self._run = run

    def _previous_value(self, builder: ZoneBuilder, name: str, node: Node) -> PreviousValue:
        """Return what a step reads of the layer in the previous one."""
        initial = self._initial_output(builder, name, node)
        state_of = None if carried_state_of(node) is None else recurrent_node(node)
        return PreviousValue(self._prevs[name], node, initial, state_of)

    def _outside(self, inner: Sequence[Node], initials: Sequence[Node]) -> list[Node]:
        """Return the nodes outside of the loop that it reads.

        :param inner: the layers of a step
        :param initials: the layers with the values of ``prev:`` in the first step
        """
        known = set(inner)
        read = [dep for node in [*inner, *self._slices] for dep in (node.deps if node in known else [node])]
        return list(dict.fromkeys([*(dep for dep in read if dep not in known), *initials]))

    def _nodes_of_length(self, deps: Sequence[Node], ending: Ending) -> list[Node]:
        """Return the nodes that the number of steps depends on.

        :param deps: what the loop reads anyway
        """
        found = list(self._length_deps)
        if ending.time_dim is None:
            known = next((node for node in deps if node.planned and self.time_dim in node.output.dims), None)
            known = known or self.parent.node_with_dim(self.owner, self.time_dim)
            if known is not None:  # determines the number of steps, even if no step uses it otherwise
                found.append(known)
        return found

    def _check_kept(self, nodes: Sequence[Node]) -> None:
        """Check that layers which keep a state from batch to batch do so once in a batch, not in each step."""
        for node in nodes:
            if node.kept and (self.parent.in_step or not node.loop_states):
                raise LayerError(
                    "Layer %r: a state can't be kept from batch to batch here, as the layer starts over in each step "
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
