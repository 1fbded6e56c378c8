"""`cond`: one of two layers, selected by a condition."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.constraints import constrains_output
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.nested.branch_losses import branch_losses
from returnn_tf.layers.nested.branch_outputs import BranchOutput
from returnn_tf.layers.nested.unit_network import unit_network, unit_references
from returnn_tf.layers.shared.nested import varies
from returnn_tf.util.lazy_tf import tf

_BRANCHES = ("true_layer", "false_layer")


@dataclasses.dataclass(frozen=True, eq=False)
class CondPlan(LayerPlan):
    """What `CondLayer` found. `Node.sub_plans` has the same as ``result`` for the parts that are used.

    :param condition: the layer with the condition
    :param branches: the layers of each branch that are computed only there
    :param result: the output
    :param losses: those of the layers in the branches
    :param states: those of the layers inside, in the step of a loop: (layer, its key, key here)
    """

    condition: Node
    branches: tuple[Sequence[Node], Sequence[Node]]
    result: BranchOutput
    losses: Sequence[LossNode]
    states: Sequence[tuple[Node, str, str]]


@register_layer("cond")
class CondLayer(Planned[CondPlan]):
    """``y = true_layer if condition else false_layer``. Only the selected layer is computed (`tf.cond`).

    A condition given as a dict is always computed; its parameters are in ``<layer>/condition``.
    Parameters: those of both layers, as if each were this layer: ``<layer>/W``, of subnetworks ``<layer>/<inner>/W``.
    Parameters of the same name are shared. ``name_scope`` in a branch replaces ``<layer>``.
    Losses of layers in a branch count when the branch is computed, and are reported as ``<layer>/<inner>``.
    In a loop, the states of recurrent layers in a branch stay as they are in steps in which it is not computed.
    Parts: ``<layer>/<inner>`` for an inner layer with is_output_layer in both branches, if they are subnetworks.
    Lengths: those of the layers; both must have the same axes.

    Example::

        network = {
            "sum": {"class": "reduce", "mode": "sum", "axis": ["B", "T", "F"], "from": "data"},
            "is_small": {"class": "compare", "kind": "less", "value": 1.0, "from": "sum"},
            "output": {
                "class": "cond", "condition": "is_small",
                "true_layer": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
                "false_layer": {"class": "linear", "activation": "sigmoid", "n_out": 3, "from": "data"}}}
    """

    has_memory = True
    needs_sources = False
    computes_all_steps = True
    name_scope: Optional[str] = option(
        None,
        help="scope of the parameters",
        inert="the parameters are in the scope of the layer's name; give a branch a name_scope to change it",
    )
    condition: Union[str, dict[str, Any]] = option(help="layer with a single bool: a layer name or a dict")
    true_layer: Union[str, dict[str, Any]] = option(help="layer to compute if it is true: a dict or a layer name")
    false_layer: Union[str, dict[str, Any]] = option(help="layer to compute if it is false: a dict or a layer name")

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return what the condition and both layers take from the layers around; "data" if that is one."""
        for name in ("condition", *_BRANCHES):
            yield from unit_references(options.get(name))

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return whether a layer of a branch varies from step to step of a loop even where its sources do not."""
        return any(varies(options.get(name)) for name in ("condition", *_BRANCHES))

    @classmethod
    def references_to_one_step(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return what the condition depends on: one that varies in a loop means that steps compute other branches."""
        yield from unit_references(options.get("condition"))

    @classmethod
    def param_references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of which the condition and both layers use parameters."""
        for name in ("condition", *_BRANCHES):
            yield from unit_references(options.get(name), of_params=True)

    def template(self, ctx: PlanContext) -> CondPlan:
        """Return the template of the true layer."""
        condition = self._plan_condition(ctx)
        true, false = (self._plan_branch(ctx, name) for name in _BRANCHES)
        _share_params(ctx, true.nodes, false.nodes)
        ctx.node.inner = true.nodes + false.nodes
        ctx.planner.hide_results(ctx.node.inner)
        result = BranchOutput.of(ctx, true.result, false.result)
        losses = branch_losses(ctx.node, (true.result, false.result), (true.losses, false.losses))
        for loss in losses:
            ctx.planner.add_loss(loss)
        branches = true.nodes, false.nodes
        return CondPlan(true.result.output, condition, branches, result, losses, list(_carry_states(ctx, branches)))

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """Return a layer inside that both branches have among their outputs."""
        if name not in self.node.sub_plans:
            found = [self._part(branch, name) for branch in range(len(_BRANCHES))]
            if found[0] is None or found[1] is None:
                return None
            self.node.sub_plans[name] = BranchOutput.of(ctx, found[0], found[1])
            ctx.sub_output(name, found[0].output)
        return ctx.planner.sub_output(ctx.node, name)

    def sub_names(self) -> list[str]:
        """Return the names of the parts that both branches have."""
        names = [[name for name in self._names(branch) if self._part(branch, name)] for branch in range(len(_BRANCHES))]
        return [name for name in names[0] if name in names[1]]

    def _names(self, branch: int) -> list[str]:
        start = self.plan.result.nodes[branch].path + "/"
        return [node.path[len(start) :] for node in self.plan.branches[branch] if node.path.startswith(start)]

    def _part(self, branch: int, name: str) -> Optional[Node]:
        """Return an output of the layer of a branch, by its name there."""
        path = "%s/%s" % (self.plan.result.nodes[branch].path, name)
        for node in self.plan.branches[branch]:
            is_output = node.layer.is_output_layer or name.rpartition("/")[2] == "output" or node.layer.is_connector
            if node.path == path and is_output:
                return node
        return None

    def _plan_condition(self, ctx: PlanContext) -> Node:
        """Return the layer of the condition; one given as a dict is computed before the branches."""
        if isinstance(self.condition, str):
            node = ctx.depend(ctx.planner.resolve(self.condition, "Layer %r" % ctx.node.path))
        else:
            unit = unit_network(self.condition, lambda ref: "base:" + ref, where="the option 'condition'")
            layer = {**unit["output"], "name_scope": self.condition.get("name_scope")}
            sink, deps = ctx.planner.sink, list(ctx.node.deps)
            copied = ctx.subnetwork({"condition": layer, "output": {"class": "copy", "from": "condition"}}, {})
            sink.remove(copied)
            ctx.node.deps = deps
            node = ctx.depend(copied.sources[0])
        data = node.output
        if not data.unknown and (data.dtype != "bool" or data.rank):
            raise ctx.error(
                "the condition %r must be a single bool, but it is %s. For a choice per entry use class 'switch'."
                % (node.path, data)
            )
        return node

    def _plan_branch(self, ctx: PlanContext, name: str) -> _Branch:
        """Plan the layers of a branch."""
        sink = ctx.planner.sink
        before = len(sink)
        deps = list(ctx.node.deps)
        given = getattr(self, name)
        network = unit_network(given, lambda ref: "base:" + ref, where="the option %r" % name)
        # The name_scope of a branch is seen from around this layer.
        around = isinstance(given, Mapping) and given.get("name_scope") is not None
        result = ctx.subnetwork(network, {}, scope=ctx.planner.param_scope if around else None)
        with_loss = ctx.planner.layers_with_loss(before)
        if with_loss and ctx.in_step:
            raise ctx.error(
                "%s: layer %r has a loss, which is not supported in a branch that each step of a loop decides on. Make "
                "the layer a part of both branches, by is_output_layer, and give the loss to a copy of this part."
                % (name, with_loss[0].path)
            )
        losses = ctx.planner.take_losses(before)
        prefix = ctx.node.path + "/"
        nodes = [node for node in sink[before:] if node.path.startswith(prefix)]
        sink[before:] = [node for node in sink[before:] if node not in nodes]
        ctx.node.deps = deps
        for node in nodes:
            self._check_inside(ctx, node)
            for dep in node.deps:
                if dep not in nodes:
                    ctx.depend(dep)
        return _Branch(result, nodes, losses)

    def _check_inside(self, ctx: PlanContext, node: Node) -> None:
        """Check that a layer of a branch may be left out.

        :raises ConfigError: its values are needed for other steps, or for the objective
        """
        has = ""
        if any(constrains_output(n) for n in [node, *node.inner]):
            has = "darc1 or spatial_smoothing"
        elif node.loop_states and node.layer.history_grows:
            has = "a history that grows in each step of the loop"
        elif node.loop_states and node.kept:
            has = "a state that is kept from batch to batch"
        if has:
            raise ctx.error(
                "layer %r has %s, which is not supported in a branch that may not be computed." % (node.path, has)
            )

    def emit(self, ctx: EmitContext) -> Any:
        """Emit `tf.cond`; lengths that only a branch knows come out of it."""
        names = ["", *self.node.sub_plans]
        outputs: list[BranchOutput] = [self.plan.result, *self.node.sub_plans.values()]
        branches, states = self.plan.branches, self.plan.states
        new = list(dict.fromkeys(d for o in outputs for d in o.data.dims if d.is_dynamic and not ctx.has_lens(d)))

        losses: list[Any] = [loss.loss for loss in self.plan.losses] if ctx.lowering.with_losses else []
        found: set[tuple[str, str]] = set()

        def branch(index: int) -> Any:
            state = ctx.lowering.child()
            for node, key, name in states:
                state.loop_inputs[node, key] = ctx.loop_state(name)
            for node in branches[index]:
                emit_node(state, node)
            values = [output.value(state, index) for output in outputs]
            dims = [
                next(o.dim(axis, index) for o in outputs for axis, d in enumerate(o.data.dims) if d is dim)
                for dim in new
            ]
            new_states = [
                state.next_states[node, key] if node in branches[index] else ctx.loop_state(name)
                for node, key, name in states
            ]
            of_losses = [loss.emit_branch(state, index, found) for loss in losses]
            for update in state.updates:
                update()
            lens, sizes = [state.get_lens(dim) for dim in dims], [state.get_size(dim) for dim in dims]
            return [values, lens, sizes, new_states, of_losses]

        values, lens, sizes, new_states, of_losses = tf.cond(
            ctx.value(self.plan.condition), lambda: branch(0), lambda: branch(1)
        )
        for dim, dim_lens, size in zip(new, lens, sizes):
            ctx.define_lens(dim, dim_lens, size)
        for (node, key, name), value in zip(states, new_states):
            value.set_shape(node.loop_states[key][0].static_shape)
            ctx.set_loop_state(name, value)
        for loss, parts in zip(losses, of_losses):
            loss.set_values(ctx, parts, found)
        for name, output, value in zip(names, outputs, values):
            value.set_shape(output.data.static_shape)
            if name:
                ctx.set_sub_output(name, value)
        return values[0]


@dataclasses.dataclass(frozen=True)
class _Branch:
    """A planned branch: its layer, all layers that are computed only in it, and their losses."""

    result: Node
    nodes: list[Node]
    losses: list[LossNode]


def _carry_states(ctx: PlanContext, branches: Sequence[Sequence[Node]]) -> Iterator[tuple[Node, str, str]]:
    """Declare the states of the layers inside as states of this layer."""
    for index, nodes in enumerate(branches):
        for node in nodes:
            for key, (data, initial) in node.loop_states.items():
                name = "%s %s %s" % (_BRANCHES[index], node.path, key)
                ctx.loop_state(name, data, functools.partial(_initial_inside, node, initial))
                yield node, key, name


def _share_params(ctx: PlanContext, true: Sequence[Node], false: Sequence[Node]) -> None:
    """Share the parameters that both branches declare."""
    known: dict[str, ParamSpec] = {spec.name: spec for node in true for spec in node.owned}
    for node in false:
        for spec in list(node.owned):
            other = known.get(spec.name)
            if other is None:
                continue
            if other.shape != spec.shape:
                raise ctx.error(
                    "both layers have a parameter %r, but of the shapes %s and %s. Put one of them into a "
                    "subnetwork or give it a name_scope." % (spec.name, other.shape, spec.shape)
                )
            node.owned.remove(spec)
    for node in false:
        for key, spec in node.params.items():
            if isinstance(spec, ParamSpec) and known.get(spec.name) is not None:
                node.params[key] = known[spec.name]


def _initial_inside(node: Node, initial: Any, ctx: EmitContext) -> Any:
    """Return the value of a state of a layer inside before the first step."""
    return initial(EmitContext(node, ctx.lowering))
