"""`cond`: one of two layers, selected by a condition."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from returnn_tf.config.errors import DimError
from returnn_tf.config.options import option
from returnn_tf.graph.constraints import constrains_output
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.loss import Loss, LossContext, LossNode
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.nested.unit_network import unit_network, unit_references
from returnn_tf.layers.shared.nested import varies
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf

_BRANCHES = ("true_layer", "false_layer")


@dataclasses.dataclass(frozen=True, eq=False)
class CondPlan(LayerPlan):
    """The plan of `CondLayer`. `Node.sub_plans` has the same as ``result`` for the parts that are used.

    :param condition: the layer with the condition
    :param branches: the layers of each branch that are computed only there
    :param result: the output
    :param losses: those of the layers in the branches
    :param states: those of the layers inside, in the step of a loop: (layer, its key, key here)
    """

    condition: Node
    branches: tuple[list[Node], list[Node]]
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
    A branch, or the condition, may be a `cond` again, as if its branches were branches of this layer.
    In a loop, the states of recurrent layers in a branch stay as they are in steps in which it is not computed.
    Parts: ``<layer>/<part>`` for what both branches have, such as the parts of a `split`; in subnetworks, for an inner
    layer with is_output_layer, and its parts.
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
    units = {"condition": False, "true_layer": False, "false_layer": False}
    condition: Union[str, dict[str, Any]] = option(
        help="layer with a single bool: a layer name or a dict", network=True
    )
    true_layer: Union[str, dict[str, Any]] = option(
        help="layer to compute if it is true: a dict or a layer name", network=True
    )
    false_layer: Union[str, dict[str, Any]] = option(
        help="layer to compute if it is false: a dict or a layer name", network=True
    )

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the outer layers that the condition and both branches refer to, and "data" if one is that."""
        for name in ("condition", *_BRANCHES):
            yield from unit_references(options.get(name))

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return whether a layer of a branch varies from step to step of a loop even where its sources do not."""
        return any(varies(options.get(name)) for name in ("condition", *_BRANCHES))

    @classmethod
    def references_to_one_step(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of the condition: if one varies in a loop, so does the branch."""
        yield from unit_references(options.get("condition"))

    @classmethod
    def param_references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of which the condition and both layers use parameters."""
        for name in ("condition", *_BRANCHES):
            yield from unit_references(options.get(name), of_params=True)

    def template(self, ctx: PlanContext) -> CondPlan:
        """Return the template of both layers."""
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
        return CondPlan(result.data, condition, branches, result, losses, list(_carry_states(ctx, branches)))

    def sub_node(self, ctx: PlanContext, name: str) -> Optional[Node]:
        """Return a layer inside that both branches have among their outputs."""
        if name not in self.node.sub_plans:
            branches = range(len(_BRANCHES))
            found = [self._part(branch, name) or self._part_of_part(ctx, branch, name) for branch in branches]
            if found[0] is None or found[1] is None:
                return None
            self.node.sub_plans[name] = both = BranchOutput.of(ctx, found[0], found[1])
            ctx.sub_output(name, both.data)
        return ctx.planner.sub_output(ctx.node, name)

    def sub_names(self) -> list[str]:
        """Return the names of the parts that both branches have."""
        names = [[name for name in self._names(branch) if self._part(branch, name)] for branch in range(len(_BRANCHES))]
        for branch, result in enumerate(self.plan.result.nodes):
            names[branch] += () if result.layer.inner_network else result.layer.sub_names()
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

    def _part_of_part(self, ctx: PlanContext, branch: int, name: str) -> Optional[Node]:
        """Return a part of the layer of a branch, or of an output in it, as a further layer of this branch.

        Inner layers of subnetworks are outputs or not by themselves, see `_part`.
        """
        words = name.split("/")
        for count in range(len(words)):
            head = self._part(branch, "/".join(words[:count])) if count else self.plan.result.nodes[branch]
            if head is None or head not in self.plan.branches[branch] or head.layer.inner_network:
                continue
            rest, planned = "/".join(words[count:]), ctx.planner.planned_nodes
            before = len(planned)
            found = head.layer.sub_node(PlanContext(head, ctx.planner), rest)
            if found is None and rest in head.sub_outputs:
                found = ctx.planner.sub_output(head, rest)
            new = planned[before:]
            del planned[before:]
            self.plan.branches[branch].extend(new)
            ctx.node.inner.extend(new)
            if found is not None:
                return found
        return None

    def _plan_condition(self, ctx: PlanContext) -> Node:
        """Return the layer of the condition; one given as a dict is computed before the branches."""
        if isinstance(self.condition, str):
            node = ctx.depend(ctx.planner.resolve(self.condition, "Layer %r" % ctx.node.path))
        else:
            unit = unit_network(self.condition, lambda ref: "base:" + ref, where="the option 'condition'")
            layer = {**unit["output"], "name_scope": self.condition.get("name_scope")}
            planned_nodes, deps = ctx.planner.planned_nodes, list(ctx.node.deps)
            copied = ctx.subnetwork({"condition": layer, "output": {"class": "copy", "from": "condition"}}, {})
            planned_nodes.remove(copied)
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
        planned_nodes = ctx.planner.planned_nodes
        before = len(planned_nodes)
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
        nodes = [node for node in planned_nodes[before:] if node.path.startswith(prefix)]
        planned_nodes[before:] = [node for node in planned_nodes[before:] if node not in nodes]
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
        new = list(dict.fromkeys(d for o in outputs for d in o.data.dims if d.is_dynamic() and not ctx.has_lens(d)))

        losses: list[Any] = [loss.loss for loss in self.plan.losses] if ctx.lowering.options.with_losses else []
        found: set[tuple[str, str]] = set()

        def branch(index: int) -> Any:
            lowering = ctx.lowering.child()
            for node, key, name in states:
                lowering.loop.inputs[node, key] = ctx.loop_state(name)
            for node in branches[index]:
                emit_node(lowering, node)
            values = [output.value(lowering, index) for output in outputs]
            dims = [
                next(o.dim(axis, index) for o in outputs for axis, d in enumerate(o.data.dims) if d is dim)
                for dim in new
            ]
            new_states = [
                lowering.loop.next_states[node, key] if node in branches[index] else ctx.loop_state(name)
                for node, key, name in states
            ]
            of_losses = [loss.emit_branch(lowering, index, found) for loss in losses]
            for update in lowering.after_step.updates:
                update()
            lens, sizes = [lowering.dims.get_lens(dim) for dim in dims], [lowering.dims.get_size(dim) for dim in dims]
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
    """Share the parameters that both branches declare, also in conditions and loops inside."""
    true, false = _with_inner(true), _with_inner(false)
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


def _with_inner(nodes: Sequence[Node]) -> list[Node]:
    """Return the layers with those inside conditions and loops."""
    return [inner for node in nodes for inner in [*_with_inner(node.inner), node]]


def _initial_inside(node: Node, initial: Any, ctx: EmitContext) -> Any:
    """Return the value of a state of a layer inside before the first step."""
    return initial(EmitContext(node, ctx.lowering))


@dataclasses.dataclass(frozen=True)
class BranchOutput:
    """An output of both branches, in the layout of the true one.

    :param nodes: of the true and the false branch
    :param mapping: axis of the false one -> axis of the true one
    """

    nodes: tuple[Node, Node]
    mapping: Sequence[int]

    @property
    def data(self) -> Data:
        """Return the template: while a loop is planned, that of the false branch if the other one is still unknown."""
        return next((node.output for node in self.nodes if not node.output.unknown), self.nodes[0].output)

    @classmethod
    def of(cls, ctx: PlanContext, true: Node, false: Node) -> BranchOutput:
        """Return the output; the axes of both must be the same.

        :raises ConfigError: they are not
        """
        data, other = true.output, false.output
        if data.unknown or other.unknown:  # a value of the previous step, while a loop is planned: it fits everywhere
            return cls((true, false), range(max(data.rank, other.rank)))
        mapping = match_axes(other, data)
        made: list[Any] = [  # dims that each branch creates, so they differ although they are meant to be the same
            axis for axis, target in enumerate(mapping) if target is None and _is_new(other.dims[axis])
        ]
        free = [axis for axis in range(data.rank) if axis not in mapping and _is_new(data.dims[axis])]
        for axis, target in zip(made, free):
            mapping[axis] = target
        if None in mapping or data.rank != other.rank or data.dtype != other.dtype:
            raise ctx.error(
                "both layers must have the same axes, but true_layer has %s and false_layer %s." % (data, other)
            )
        if (data.sparse_dim is None) != (other.sparse_dim is None) or data.dim != other.dim:
            raise ctx.error("the features differ: true_layer has %s, false_layer %s." % (data, other))
        return cls((true, false), [axis for axis in mapping if axis is not None])

    def value(self, lowering: Lowering, branch: int) -> Any:
        """Return the value of a branch, in the layout of the true one."""
        node = self.nodes[branch]
        value = lowering.values.outputs[node]
        return to_layout(value, node.output, self.data, list(self.mapping)) if branch else value

    def dim(self, axis: int, branch: int) -> Dim:
        """Return the dim that a branch has for an axis of the true one."""
        return self.nodes[branch].output.dims[self.mapping.index(axis) if branch else axis]


def _is_new(dim: Dim) -> bool:
    return dim.is_dynamic() and dim.expr is None and dim.auto


_PARTS = ("value", "error", "count")


class BranchLoss(Loss):
    """The loss of a layer that one branch has, or both have under the same name. `cond` emits its values.

    :param name: as reported
    :param branches: the loss in the true and in the false branch
    :raises ConfigError: both have one, but with options that make them different numbers in reports
    """

    needs_target = False

    def __init__(self, name: str, branches: Sequence[Optional[LossNode]]) -> None:
        super().__init__()
        given = [node for node in branches if node is not None]
        for what in ("scale", "use_normalized_loss"):
            values = {getattr(node if what == "scale" else node.loss, what) for node in given}
            if len(values) > 1:
                raise DimError(
                    "both branches have a loss %r, but %s differs. Give both the same, or the layers other names."
                    % (name, "its weight (loss_scale)" if what == "scale" else what)
                )
        self.name = name
        self.class_name = given[0].loss.class_name  # type: ignore[misc]
        self.branches = tuple(branches)
        self.use_normalized_loss = given[0].loss.use_normalized_loss
        #: What the losses need, for the plan.
        needs = [n for node in given for n in (node.target, node.seq_tags, *_nodes_of(node.loss))]
        self.needs = tuple(node for node in needs if isinstance(node, Node))

    @property
    def loss_scale(self) -> float:
        """Return the weight in the objective."""
        return next(node.scale for node in self.branches if node is not None)

    def seal(self, place: str) -> None:
        """Forbid all further changes."""
        for node in self.branches:
            if node is not None:
                node.loss.seal("The loss %r of layer %r" % (node.loss.class_name, node.name))
        super().seal(place)

    def emit_branch(self, lowering: Lowering, index: int, found: set[tuple[str, str]]) -> list[Any]:
        """Emit value, error and count of a branch; 0 for what it does not have.

        :param lowering: the values of the branch
        :param found: gets (name, part) of those that it has
        """
        node, float_dtype = self.branches[index], lowering.options.semantics.float_dtype
        if node is None:
            return [tf.zeros([], float_dtype)] * len(_PARTS)
        ctx = LossContext(node, EmitContext(node.owner, lowering))
        parts = {"count": node.loss.count(ctx), "value": node.loss.value(ctx), "error": node.loss.error(ctx)}
        found.update((self.name, part) for part, value in parts.items() if value is not None)
        return [tf.cast(0.0 if parts[part] is None else parts[part], float_dtype) for part in _PARTS]

    def set_values(self, ctx: EmitContext, values: Sequence[Any], found: set[tuple[str, str]]) -> None:
        """Keep what came out of the branches.

        :param ctx: of the `cond`
        """
        for part, value in zip(_PARTS, values):
            if (self.name, part) in found:
                ctx.set_sub_output(self._key(part), value)

    def _key(self, part: str) -> str:
        return "%s of the loss %s" % (part, self.name)

    def _get(self, ctx: LossContext, part: str) -> Optional[Any]:
        return ctx.lowering.values.sub_outputs.get((ctx.node, self._key(part)))

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Return the loss of the branch that was computed."""
        return self._get(ctx, "value")

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Return the error of the branch that was computed."""
        return self._get(ctx, "error")

    def count(self, ctx: LossContext) -> Any:
        """Return the number of frames in the branch that was computed; 0 if it has no such loss."""
        return self._get(ctx, "count")


def _nodes_of(loss: Loss) -> list[Any]:
    found: list[Any] = []
    for value in vars(loss).values():
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def branch_losses(owner: Node, results: Sequence[Node], losses: Sequence[Sequence[LossNode]]) -> list[LossNode]:
    """Return the losses of a `cond` as losses on it.

    :param owner: its node
    :param results: the layer of each branch
    :param losses: those of the layers in each branch
    :raises ConfigError: losses of both branches that have the same name don't fit
    """
    names: dict[str, list[Optional[LossNode]]] = {}
    for index, (result, of_branch) in enumerate(zip(results, losses)):
        for node in of_branch:
            name = owner.path + node.name[len(result.path) :]
            names.setdefault(name, [None] * len(results))[index] = node
    found = []
    for name, branches in names.items():
        loss = BranchLoss(name, branches)
        found.append(LossNode(name, loss, None, owner, loss.loss_scale))
    return found
