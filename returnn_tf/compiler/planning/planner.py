"""Plans networks: orders the layers by their dependencies and infers every template. No TensorFlow.

A network may have loops, whose units are networks again; so `Planner` and `LoopPlanner` need each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.compiler.planning.checks import LayerError, check_source_dtypes, cycle_error, located, with_beam
from returnn_tf.compiler.planning.compilation import Compilation
from returnn_tf.compiler.planning.iterated_axis import IteratedAxis, iterated_axis, knows_axis
from returnn_tf.compiler.planning.layer_options import set_options
from returnn_tf.compiler.planning.loop_checks import (
    check_kept_states,
    constrained_nodes,
    warn_of_loop,
)
from returnn_tf.compiler.planning.loop_memory import Answer, Facts, LoopInputs, Question
from returnn_tf.compiler.planning.loop_termination import LoopTermination
from returnn_tf.compiler.planning.losses import plan_loss
from returnn_tf.compiler.planning.order import PlanningOrder, Unit
from returnn_tf.compiler.planning.parse import (
    LayerSpec,
    describe_place,
    has_loss,
    is_on,
    join_scope,
    parse_layer,
    scope_name,
    split_extra,
)
from returnn_tf.compiler.planning.results import Result, Results
from returnn_tf.compiler.planning.rounds import MAX_ROUNDS, Round, RoundResult, guess, guessed_batch
from returnn_tf.compiler.planning.scope import ExtraScope, Scope
from returnn_tf.compiler.planning.step_layers import StepLayers, rec_layer
from returnn_tf.compiler.planning.sub_output import SubOutputLayer
from returnn_tf.compiler.planning.zone_transfer import ZoneTransfer
from returnn_tf.compiler.planning.zones import Zone
from returnn_tf.config.errors import CodeError, ConfigError, SourceError, did_you_mean, nearest_name, shown
from returnn_tf.config.options import OptionValueError, declared_options, log_inert
from returnn_tf.graph.batch_norm import declare_batch_norm_option
from returnn_tf.graph.constraints import check_output_constraints
from returnn_tf.graph.hidden_state import recurrent_node
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.graph.params.reuse import ReuseLevel
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.sealing import SealedError
from returnn_tf.layers.math.copy import CopyLayer
from returnn_tf.layers.rec.state import carried_state_of
from returnn_tf.layers.search.loop_search import loop_search
from returnn_tf.logging.log import log
from returnn_tf.loops.frame import LoopRunLayer
from returnn_tf.loops.nodes import StepIndexLayer
from returnn_tf.loops.plan import Ending, LoopPlan, PreviousValue
from returnn_tf.tensor import Beam, Data, Dim
from returnn_tf.tensor.expected_dims import check_dims

#: Options about the parameters of a layer.
_OPTIONS_OF_PARAMS = (
    "L2", "param_device", "param_dropout", "param_dropout_min_ndim", "param_variational_noise", "reuse_params",
    "trainable", "updater_opts",
)  # fmt: skip
#: Limit of nested networks: each level takes some frames of Python's stack.
_MAX_DEPTH = 40


@dataclasses.dataclass(frozen=True)
class Place:
    """The place where the layers of a network are computed; a nested network is where its layer is.

    :param planned_nodes: collects these nodes in the order of their computation
    :param results: collects the layers whose values or losses are wanted
    :param in_step: whether in the step of a loop
    :param loop_dim: the step axis, for layers of a loop that are computed for all steps at once
    :param iterated_dim: the axis that the innermost loop runs over, if the number of steps is known before
    :param outer_reuse: ``reuse_params`` of the `rec` layers around, the innermost first
    :param rounds: the rounds of the loops around, the innermost first
    :param depth: how many networks are around
    :param unit: of what is planned as a whole: the main network, or that in a loop, branch or the like
    """

    planned_nodes: list[Node]
    results: Results
    search: bool
    in_step: bool = False
    loop_dim: Optional[Dim] = None
    iterated_dim: Optional[Dim] = None
    outer_reuse: tuple[ReuseLevel, ...] = ()
    rounds: tuple[Round, ...] = ()
    depth: int = 0
    unit: Unit = dataclasses.field(default_factory=Unit)

    @property
    def in_loop(self) -> bool:
        """Return whether the layers belong to a loop, in a step or for all steps at once."""
        return self.in_step or self.loop_dim is not None

    def inside(self, path: str) -> Place:
        """Return the place of the network in a layer, a unit of its own.

        :raises LayerError: it is nested too deep
        """
        if self.depth == _MAX_DEPTH:
            raise LayerError(
                "Layer %r: networks are nested more than %d levels deep." % (path, _MAX_DEPTH), topic="sources"
            )
        return dataclasses.replace(self, depth=self.depth + 1, unit=Unit())


class Planner(NetworkPlanner):
    """Plans one network dict, or those layers of the unit of a loop that are in one zone.

    :param scope: the names of the layers
    :param param_scope: scope of the parameters
    :param parent: plans the network around
    :param owner: the layer that contains the network
    :param inputs: data key -> node, for nested networks
    :param zone: the loop and its zone
    :param main: of an extra network: plans the main one
    :param given: layers of the network that are planned already, by name
    """

    def __init__(
        self,
        compilation: Compilation,
        scope: Scope,
        place: Place,
        *,
        param_scope: str = "",
        parent: Optional[Planner] = None,
        owner: Optional[Node] = None,
        inputs: Optional[Mapping[str, Node]] = None,
        zone: Optional[tuple[LoopPlanner, Zone]] = None,
        main: Optional[Planner] = None,
        given: Optional[Mapping[str, Node]] = None,
    ) -> None:
        self.compilation = compilation
        self.scope = scope
        self.place = place
        self.parent = parent
        self._owner = owner
        self._inputs = inputs
        #: Finds the inputs, if the layer with this network is not planned yet.
        self._find_inputs: Optional[Callable[[], Mapping[str, Node]]] = None
        self._zone = zone
        self._main = main
        self._extra_networks: dict[str, Planner] = {}
        self._nodes: dict[str, Node] = dict(given or {})
        self._order = PlanningOrder(
            scope, self._nodes, self._own_layer, place.unit, compilation.parse, in_loop=place.in_loop
        )
        #: The nodes of layers that are being planned, or of which layers inside are needed before.
        self._begun: dict[str, Node] = {}
        #: The planners of the networks inside of these.
        self._inner: dict[Node, Planner] = {}
        #: Layers that have their sources and options.
        self._prepared: set[Node] = set()
        #: The names of the layers that are being planned themselves, not only their dependencies.
        self._planning: set[str] = set()
        #: What the loops of this network that are being planned learn of it.
        self._loop_inputs: list[LoopInputs] = []
        self.semantics = compilation.semantics
        self.dims = compilation.dims
        self.param_scope = param_scope
        self.planned_nodes = place.planned_nodes
        self.search = place.search
        self.in_step = place.in_step
        self.loop_dim = place.loop_dim
        self.iterated_dim = place.iterated_dim
        self.outer_reuse = place.outer_reuse

    # --- which layers, in which order ---

    def plan(self) -> None:
        """Plan the output layers, the layers with losses, and all that these need."""
        for name in self._roots():
            self.node(name)
        if not self.search:
            specs = self.scope.specs.values()
            omitted = [s.path for s in specs if has_loss(s, False) and not self._counts_loss(s)]
            self.compilation.omitted_losses.update(dict.fromkeys(omitted))

    def _roots(self) -> list[str]:
        roots = []
        for name, spec in self.scope.specs.items():
            if self.is_wanted(spec) or (name == "output" and self.parent):
                roots.append(name)
        if not roots:
            raise SourceError(
                "%s has no output: name a layer 'output', or give one a loss or is_output_layer=True."
                % ("network" if not self.scope.path else "The network inside of layer %r" % self.scope.path)
            )
        return roots

    def is_wanted(self, spec: LayerSpec) -> bool:
        """Return whether a layer is planned even if no other layer needs it."""
        if not self.search and is_on(spec, "only_on_search"):
            return False
        is_output = spec.options.get("is_output_layer") or (spec.name == "output" and not self.parent)
        return bool(is_output) or self._counts_loss(spec)

    def _counts_loss(self, spec: LayerSpec) -> bool:
        """Return whether the loss of a layer is computed: in a loop only to train or evaluate."""
        if self.place.in_loop:
            return self.compilation.loop_losses and not self.search and has_loss(spec, False)
        return has_loss(spec, self.search)

    def planned(self, name: str) -> Optional[Node]:
        """Return a layer of this network if it is planned already, else None."""
        return self._nodes.get(name)

    def node(self, name: str) -> Node:
        """Return the planned layer of this network; plan it and its dependencies first if necessary."""
        if name not in self._nodes:
            for spec in self._order.of(name):
                self._plan_layer(spec)
        return self._nodes[name]

    def _own_layer(self, ref: str) -> Optional[str]:
        """Return the layer that this planner plans for a reference, or None."""
        name = self.scope.layer_of(ref)
        if name is None or self._zone is None:
            return name
        loop, zone = self._zone
        return name if loop.zones.get(name) is zone else None

    # --- names ---

    def resolve(self, ref: str, where: str) -> Node:
        """Return the node of a name, which may be in this network, an input, or in a network around or beside it."""
        node = self._resolve(ref, where)
        for inputs in self._loop_inputs:
            inputs.answers[Question("node", ref)] = Facts.of(node)
        return node

    def _resolve(self, ref: str, where: str) -> Node:
        if self._zone is not None:
            found = self._zone[0].resolve(self, self._zone[1], ref, where)
            if found is not None:
                return found
        if self._main is not None and self.scope.is_shared(ref):
            node = self._main.resolve(self.scope.own_name(ref), where)
            self._add_shared_results(self._main, ref)
            return node
        ref = self.scope.own_name(ref)
        if ref.startswith("base:"):
            data = ref[len("base:") :]
            if self.parent is None and (data == "data" or data.startswith("data:")):
                return self._resolve(data, where)
            if self.parent is None:
                raise LayerError(
                    "%s: %r refers to the outer network, but this network is not nested in a layer." % (where, ref),
                    topic="sources",
                )
            return self.parent.resolve(ref[len("base:") :], where)
        if ref.startswith("prev:"):
            return self._prev_of_loop_around(ref, where)
        extra = split_extra(ref)
        if extra is not None and self.parent is None:
            return self.extra_network(extra[0]).resolve(extra[1], where)
        name = self._own_layer(ref)
        if name is not None:
            rest = "" if ref == name else self.scope.part_of(ref, name)
            if name in self._planning or (rest and self._order.is_partial(name)):
                found = self._inside(name, rest or "output", where)
                if found is not None:
                    return found
            node = self.node(name)
            return self._part_of(node, rest, where) if rest else node
        if ref == "data" or ref.startswith("data:"):
            return self._input(ref.partition(":")[2] or "data", where)
        raise self._unknown_layer(ref, where)

    def _inside(self, name: str, rest: str, where: str) -> Optional[Node]:
        """Return a layer inside of a layer that is not planned itself; None if it has to be planned first."""
        spec = self.scope.specs[name]
        if spec.error is not None or not spec.cls.inner_network:
            return None
        planner = self._begun_network(spec)
        if planner.scope.layer_of(rest) is None:
            raise LayerError(
                "%s: layer %r has no part %r. %s" % (where, spec.path, rest, did_you_mean(rest, planner.scope.specs)),
                topic="sources",
            )
        return planner.resolve(rest, where)

    def _begun_network(self, spec: LayerSpec) -> Planner:
        """Return the planner of the network inside a layer that is not planned itself; its inputs follow on demand."""
        node = self._begin(spec)
        if node not in self._inner:
            network = spec.options[spec.cls.inner_network]
            planner = self._planner_inside(
                node, network, {"data": node} if spec.sources else {}, node.scope, whole=False
            )
            planner._inputs, planner._find_inputs = None, functools.partial(self._begun_inputs, spec, node)
            self._inner[node] = planner
            self.place.unit.partial.append(functools.partial(self._complete, spec.name))
        return self._inner[node]

    def _complete(self, name: str) -> None:
        """Plan a layer of which layers inside were needed, unless it is being planned."""
        if name not in self._planning:
            self.node(name)

    def _begun_inputs(self, spec: LayerSpec, node: Node) -> dict[str, Node]:
        with located(spec.path, str(spec.cls.class_name), node):
            self._prepare(spec, node)
            return node.layer.network_inputs(PlanContext(node, self))

    def _unknown_layer(self, ref: str, where: str) -> LayerError:
        extern = self.compilation.extern_data
        hint = "Write 'data:%s' for the data key." % ref
        read = extern.get("data")
        if ref in extern and extern[ref].sparse and read is not None and not read.sparse:
            hint = "Write 'data:%s' for the data key with these labels, or 'data' for the features." % ref
        if ref not in self.scope.input_keys():
            hint = self.compilation.key_hint(ref, self.scope.known_names())
        if self.parent is not None and (ref in self.parent.scope.specs or split_extra(ref) is not None):
            hint = "Write 'base:%s' for the outer layer." % ref
        return LayerError("%s: there is no layer %r. %s" % (where, ref, hint), topic="sources")

    def _prev_of_loop_around(self, ref: str, where: str) -> Node:
        """Return ``prev:x`` for a network that is nested in the step of a loop."""
        if self.place.in_loop and self.parent is not None and self._owner is not None:
            if self._owner.layer.steps_with_loop:
                name = self.scope.name_outside(ref[len("prev:") :], self.parent.scope, where)
                if self._owner.layer.units:  # its unit is the layer "output" here, and the layer itself outside
                    name = name.replace("/output", "", 1)
                return self.parent.resolve("prev:" + name, where)
        if self.place.in_loop:
            raise LayerError(
                "%s: %r needs the previous step, but the network that it is in is not computed in each step. Name "
                "a layer of the loop instead: 'base:%s' means that of the network around." % (where, ref, ref),
                topic="sources",
            )
        raise LayerError(
            "%s: %r needs the previous step of a loop, but this network is not in a 'rec' layer." % (where, ref),
            topic="loops",
        )

    def try_resolve(self, ref: str, where: str) -> Optional[Node]:
        """Return the node of a name that nothing needs in this mode, or None if there is a mistake in the layer."""
        planners: list[Planner] = [self]
        while planners[-1].parent is not None:
            planners.append(planners[-1].parent)
        open_layers, partial = len(self.compilation.open_layers), len(self.place.unit.partial)
        before = [(set(planner._order.open), dict(planner._begun)) for planner in planners]
        try:
            node = self.resolve(ref, where)
            self.place.unit.complete(partial)
            return node
        except ConfigError:
            del self.place.unit.partial[partial:]
            for planner, (opened, begun) in zip(planners, before):
                planner._begun = begun
                planner._order.open &= opened
            del self.compilation.open_layers[open_layers:]
            return None

    def find(self, ref: str, where: str) -> Optional[Node]:
        """Return the node of a layer of this network, or None if it has no such layer."""
        return None if self._own_layer(ref) is None else self.resolve(ref, where)

    def find_around(self, ref: str, where: str) -> Node:
        """Return a layer for an option of a loop here; "base:" may begin the name, as seen from within the loop."""
        if ref.startswith("base:"):
            ref = ref[len("base:") :]
            found = None if self.parent is None else self.parent.find(ref, where)
            return self.resolve(ref, where) if found is None else found
        return self.resolve(ref, where)

    def _knows(self, ref: str) -> bool:
        return self.scope.is_shared(ref) or self._own_layer(ref) is not None

    def _part_of(self, node: Node, name: str, where: str) -> Node:
        found: Optional[Node] = node.layer.sub_node(PlanContext(node, self), name)
        if found is None and name in node.sub_outputs:
            found = self.sub_output(node, name)
        if found is None and any(node.path in a_round.guessed for a_round in self.place.rounds):
            node.sub_outputs[name] = Data((), unknown=True)  # a later round knows its parts
            found = self.sub_output(node, name)
        if found is None:
            raise LayerError(
                "%s: layer %r has no part %r. %s"
                % (where, node.path, name, did_you_mean(name, node.layer.sub_names())),
                topic="sources",
            )
        return found

    def _input(self, key: str, where: str) -> Node:
        self._complete_inputs()
        if self._inputs is not None and key in self._inputs:
            return self._inputs[key]
        if self._inputs is not None and key == "data":
            raise LayerError(
                "%s: the nested network has no input 'data', since the layer has no sources." % where, topic="sources"
            )
        around = self.parent
        extern = self.compilation.extern_data
        while around is not None and key not in extern:
            if key in around.scope.registered:
                node = around.node(around.scope.registered[key])
                self._tell_loops(Question("node", "data:" + key), around, Facts.of(node))
                return node
            around = around.parent
        if key not in extern:
            hint = self.compilation.key_hint(key, self.scope.input_keys())
            raise LayerError("%s: there is no data key %r in extern_data. %s" % (where, key, hint), topic="sources")
        return self.extern_node(key)

    def _complete_inputs(self) -> None:
        if self._find_inputs is not None:
            self._inputs = self._find_inputs()
            self._find_inputs = None

    def owner_of_params(self, ref: str, where: str) -> Node:
        """Return the layer whose parameters a name in ``reuse_params`` refers to."""
        name = self.scope.layer_of(ref)
        if self._zone is not None and name is not None and not ref.startswith("base:"):
            loop, zone = self._zone
            home = loop.zones.get(name)
            if home is not None and home is not zone:
                return loop.planners[home].owner_of_params(ref, where)
        if ref.startswith("base:") and self.parent is not None:
            return self.parent.owner_of_params(ref[len("base:") :], where)
        own = self._own_layer(ref)
        if own is None or own == ref:
            return self.resolve(ref, where)
        inside = self.compilation.inner.get(self.node(own))
        return self.resolve(ref, where) if inside is None else inside.owner_of_params(ref[len(own) + 1 :], where)

    def target_node(self, owner: Node, target: str) -> Node:
        """Return the layer of this name, here or in a network around, else the data key."""
        where = describe_place(owner.path, owner.layer.class_name)
        if target.startswith(("layer:", "base:", "data:")):
            return self.resolve(target, where)
        planner = self._planner_of_target(target)
        if planner is not None:
            node = planner.resolve(target, where)
            self._tell_loops(Question("target", target), planner, Facts(node.output))
            return node
        if target not in self.compilation.extern_data:
            known = [*self.scope.specs, *self.compilation.extern_data]
            raise LayerError(
                "%s: the target %r is neither a layer nor a data key. %s"
                % (where, target, self.compilation.key_hint(target, known)),
                topic="targets",
            )
        return self.extern_node(target)

    def target_data(self, owner: Node, target: str) -> Data:
        """Return the template of a target without counting a data key as used."""
        key: Optional[str] = target
        if target.startswith("data:"):
            key = target[len("data:") :]
        elif target.startswith(("layer:", "base:")) or self._planner_of_target(target) is not None:
            key = None
        if key in self.compilation.extern_data:
            return self.compilation.extern_data[key]
        return self.target_node(owner, target).output

    def _planner_of_target(self, target: str) -> Optional[Planner]:
        """Return the planner of the innermost network with a layer of this name, or None."""
        planner: Optional[Planner] = self
        while planner is not None and not planner._knows(target):
            planner = planner.parent
        return planner

    def extern_node(self, key: str) -> Node:
        """Return the input node of a data key; that of the names of the sequences need not be declared."""
        return self.compilation.extern_node(key)

    def node_with_dim(self, owner: Node, dim: Dim) -> Optional[Node]:
        """Return a planned layer or input with this dim, preferring what the layer needs anyway."""
        used_inputs = sorted(self.compilation.extern.values(), key=lambda node: node.extern_key != "data")
        candidates = owner.deps + list((self._inputs or {}).values()) + used_inputs
        planner: Optional[Planner] = self
        while planner is not None:
            for inputs in planner._loop_inputs if dim.size is None else ():
                inputs.answers[Question("dim", dim)] = planner._has_dim(dim)
            candidates += [node for node in planner._nodes.values() if node is not owner]
            planner = planner.parent
        for node in candidates:
            if node.planned and dim in node.output.dims:
                return node
        extern = self.compilation.extern_data
        key = next((key for key, data in extern.items() if dim in data.dims), None)
        return None if key is None else self.extern_node(key)

    def _has_dim(self, dim: Dim) -> bool:
        """Return whether a planned layer, here or around, or an input has a dim."""
        nodes = [*(self._inputs or {}).values(), *self._nodes.values()]
        if any(node.planned and dim in node.output.dims for node in nodes):
            return True
        if self.parent is not None:
            return self.parent._has_dim(dim)
        return any(dim in data.dims for data in self.compilation.extern_data.values())

    def _tell_loops(self, question: Question, upto: Planner, answer: Answer) -> None:
        """Note what the loops around learn.

        :param upto: the planner of the network around that had the answer
        """
        planner: Optional[Planner] = self
        while planner is not None:
            for inputs in planner._loop_inputs:
                inputs.answers[question] = answer
            planner = None if planner is upto else planner.parent

    def _answer(self, owner: Node, question: Question) -> Answer:
        if isinstance(question.name, Dim):
            return self._has_dim(question.name)
        if question.kind == "target":
            return Facts(self.target_data(owner, question.name))
        return Facts.of(self.resolve(question.name, "Layer %r" % owner.path))

    # --- planning one layer ---

    def _plan_layer(self, spec: LayerSpec) -> None:
        if spec.name in self._planning:
            raise cycle_error("", self.compilation.open_layers, spec.path, in_loop=self.place.in_loop)
        node = self._begin(spec)
        self._planning.add(spec.name)
        self.compilation.open_layers.append(spec.path)
        unit = self.place.unit
        unit.in_progress += not spec.cls.inner_network
        try:
            with located(spec.path, str(spec.cls.class_name), node):
                self._prepare(spec, node)
                self._infer(node)
        finally:
            self._planning.discard(spec.name)
            self.compilation.open_layers.pop()
            unit.in_progress -= not spec.cls.inner_network
        self._begun.pop(spec.name, None)
        self._order.open.discard(spec.name)
        layer = node.layer
        if self.parent is None and layer.initial_output is not None:
            if layer.iterates_unit or not layer.gives_initial_output():
                log_inert(spec.where, "initial_output", "the layer is not in a loop")
        self._nodes[spec.name] = node
        if self._zone is None:  # of a loop, the values for all steps count
            self.add_result(spec, node, is_output=self.scope.is_result(spec), with_loss=self._counts_loss(spec))
        if not unit.in_progress:
            unit.complete()

    def _begin(self, spec: LayerSpec) -> Node:
        """Return the node of a layer that is not planned."""
        if spec.name not in self._begun:
            self._begun[spec.name] = Node(spec.path, spec.cls.with_defaults(), self._param_scope_of(spec))
        return self._begun[spec.name]

    def _prepare(self, spec: LayerSpec, node: Node) -> None:
        """Set sources and options of a layer."""
        if node in self._prepared:
            return
        node.sources = [self.resolve(s if isinstance(s, str) else s[0], spec.where) for s in spec.sources]
        node.deps = list(dict.fromkeys(node.sources))
        set_options(self, node, spec)
        self._depend_on_code(node, spec)
        self._prepared.add(node)

    def _param_scope_of(self, spec: LayerSpec) -> str:
        given: Optional[str] = spec.options.get("name_scope")
        if declared_options(spec.cls)["name_scope"].inert:
            is_unit = spec.name == "output" and self._owner is not None and bool(self._owner.layer.units)
            given = "" if is_unit else None  # a unit is in the scope of the layer around
        if given is None:
            return join_scope(self.param_scope, scope_name(spec.name))
        if given.startswith("/"):
            return given.strip("/")
        return join_scope(self.param_scope, given.strip("/"))

    def _depend_on_code(self, node: Node, spec: LayerSpec) -> None:
        """Add the layers that code in the options asks for; in a search, such code need not use the targets."""
        for ref in spec.code_references:
            if self.search and "data:" in ref:
                continue
            with contextlib.suppress(LayerError):  # the code may ask for it only if it exists
                node.depend(self.resolve(ref, spec.where))

    def _infer(self, node: Node) -> None:
        """Infer the template of one node, with the changes by the base options."""
        layer = node.layer
        node.seal_layer()
        node.in_search = self.search
        ctx = PlanContext(node, self)
        found = self._template(ctx)
        if not isinstance(found, (Data, LayerPlan)):
            raise CodeError(
                "template() must return the template of the output, or a LayerPlan with it, but it returned %s."
                % shown(found),
            )
        node.found = LayerPlan(found) if isinstance(found, Data) else found
        node.output = node.found.output
        check_source_dtypes(node)
        if not layer.ends_search:
            node.output = with_beam(node)
        if node.replaced_dims:
            node.own_output = node.output
            node.output = node.output.map_dims(lambda dim: node.replaced_dims.get(dim, dim))
        if layer.size_target and not declared_options(type(layer))["size_target"].inert:
            node.output = self._with_lengths_of(node, layer.size_target)
        if layer.batch_norm and not layer.normalizes_batch:
            declare_batch_norm_option(ctx, layer.batch_norm)
        check_output_constraints(ctx, node.output)
        index = layer.copy_output_loss_from_source_idx
        if index is not None and not 0 <= index < len(node.sources):
            raise SourceError(
                "copy_output_loss_from_source_idx is %d, but there are %d sources." % (index, len(node.sources))
            )
        if layer.out_shape is not None:
            if not any(a_round.half_known(node) for a_round in self.place.rounds if not a_round.strict):
                check_dims(node.output, layer.out_shape, self.dims.resolve, self.dims.is_by_sequence)
        self.planned_nodes.append(node)

    def _template(self, ctx: PlanContext) -> Union[Data, LayerPlan]:
        """Return the template of the layer, or a guess while a loop around does not know all sources yet."""
        node = ctx.node
        tolerant = [a_round for a_round in self.place.rounds if a_round.tolerates(node)]
        try:
            return node.layer.template(ctx)
        except (OptionValueError, SealedError):
            raise
        except ConfigError as exc:
            if not tolerant:
                raise
            tolerant[0].record(node, exc)
            node.params.clear()
            node.owned.clear()
            return guess(ctx, tolerant[0])

    def _with_lengths_of(self, node: Node, target: str) -> Data:
        other = self.target_data(node, target)
        data = node.output
        if data.time_axis is None or other.time_dim is None:
            raise SourceError(
                "size_target %r: both need a time axis; the output is %s, the target %s." % (target, data, other)
            )
        node.depend(self.target_node(node, target))
        return data.with_dim(data.time_axis, other.time_dim)

    # --- layers within layers, and networks beside this one ---

    def subnetwork(
        self,
        owner: Node,
        network: dict[str, Any],
        inputs: dict[str, Node],
        scope: str,
        loop_dim: Optional[Dim] = None,
    ) -> Node:
        """Plan a nested network and return its output layer."""
        planner = self._planner_inside(owner, network, inputs, scope, loop_dim)
        planner.plan()
        return planner.node("output")

    def inner_network(self, owner: Node) -> Node:
        """Plan the network of the option ``inner_network`` of a layer and return its output layer."""
        layer = owner.layer
        if owner not in self._inner:
            inputs = layer.network_inputs(PlanContext(owner, self))
            network = getattr(layer, layer.inner_network)
            self._inner[owner] = self._planner_inside(owner, network, inputs, owner.scope, whole=False)
        planner = self._inner[owner]
        planner._complete_inputs()
        if self.place.unit.in_progress:
            self.place.unit.partial.append(planner.plan)
        else:
            planner.plan()
        return planner.node("output")

    def _planner_inside(
        self,
        owner: Node,
        network: dict[str, Any],
        inputs: dict[str, Node],
        scope: str,
        loop_dim: Optional[Dim] = None,
        *,
        whole: bool = True,
    ) -> Planner:
        """Return the planner of the network in a layer.

        :param whole: whether no other network uses layers inside of it
        """
        place = self.place.inside(owner.path)
        if not whole:
            place = dataclasses.replace(place, unit=self.place.unit)
        if loop_dim is not None:
            place = dataclasses.replace(place, loop_dim=loop_dim)
        specs = self.compilation.parse(network, owner.path)
        names = Scope(specs, owner.path, inputs, self.compilation.extern_data)
        planner = Planner(self.compilation, names, place, param_scope=scope, parent=self, owner=owner, inputs=inputs)
        if "output" not in specs:
            raise LayerError(
                "Layer %r: the nested network has no layer 'output'. %s" % (owner.path, did_you_mean("output", specs)),
                topic="sources",
            )
        self.compilation.inner[owner] = planner
        return planner

    def step_network(self, owner: Node) -> Node:
        """Plan the network that is the unit of a `rec` layer and return its output for all steps."""
        rounds, memory, unit = self.place.rounds, self.compilation.loops, rec_layer(owner).unit
        if not rounds:
            return LoopPlanner(owner, self).plan(RoundResult())
        known = memory.find(owner, unit, rounds, functools.partial(self._answer, owner))
        if known is not None and (known.error is not None or not all(a_round.whole for a_round in rounds)):
            return known.repeat(owner, rounds)
        inputs = LoopInputs(owner)
        self._loop_inputs.append(inputs)
        try:
            found = RoundResult() if known is None else known.found
            memory.plan(owner, unit, rounds, inputs, functools.partial(self._plan_loop, owner, found))
        finally:
            self._loop_inputs.remove(inputs)
        return owner.exits["output"]

    def _plan_loop(self, owner: Node, known: RoundResult) -> RoundResult:
        loop = LoopPlanner(owner, self)
        loop.plan(known)
        return loop.found

    def nested_node(self, owner: Node, name: str) -> Optional[Node]:
        """Return a layer of the nested network of ``owner``."""
        planner = self.compilation.inner.get(owner)
        return None if planner is None else planner.find(name, "Layer %r" % owner.path)

    def implicit_layer(self, owner: Node, name: str, layer: Layer, sources: Sequence[Node]) -> Node:
        """Plan a layer that the config does not name."""
        node = Node("%s/%s" % (owner.path, name), layer, join_scope(owner.scope, scope_name(name)))
        node.sources = list(sources)
        node.deps = list(dict.fromkeys(sources))
        with located(node.path, layer.class_name, node):
            self._infer(node)
        return node

    def layer_of_dict(self, owner: Node, options: Mapping[str, Any], sources: Sequence[Node]) -> Node:
        """Plan the layer of a dict as a part of another one, with its scope and options of the parameters."""
        name = owner.path.rpartition("/")[2]  # which some classes use in names of parameters and dims
        given = {**options, "from": [source.path for source in sources]}
        spec = parse_layer(name, given, "%s/%s" % (owner.path, name), self.semantics.behavior_version)
        node = Node(spec.path, spec.cls.with_defaults(), owner.scope)
        node.sources = list(sources)
        node.deps = list(dict.fromkeys(sources))
        with located(node.path, str(spec.cls.class_name), node):
            set_options(self, node, spec)
            vars(node.layer).update({name: getattr(owner.layer, name) for name in _OPTIONS_OF_PARAMS})
            self._infer(node)
        return node

    def sub_output(self, owner: Node, name: str) -> Node:
        """Return a node for a further output of a layer."""
        path = "%s/%s" % (owner.path, name)
        for node in self.planned_nodes:
            if node.path == path:
                return node
        layer = SubOutputLayer(sub_name=name)
        node = Node(path, layer, owner.scope)
        node.sources, node.deps = [owner], [owner]
        node.output, node.in_search = owner.sub_outputs[name], owner.in_search
        self.planned_nodes.append(node)
        return node

    def extra_network(self, prefix: str) -> Planner:
        """Return the planner of an extra network of the same dict.

        :param prefix: of the names, e.g. ``extra.search:``
        """
        if self._main is not None:
            return self._main.extra_network(prefix)
        if prefix not in self._extra_networks:
            _warn_of_misspelt_search(prefix)
            search = self.search or "search" in prefix[:-1].split(".")
            specs, extern = self.compilation.specs, self.compilation.extern_data
            scope = ExtraScope(prefix, specs, extern, searches=search != self.search)
            place = dataclasses.replace(self.place, search=search)
            self._extra_networks[prefix] = Planner(self.compilation, scope, place, main=self)
        return self._extra_networks[prefix]

    # --- results ---

    def add_result(self, spec: LayerSpec, node: Node, *, is_output: bool, with_loss: bool) -> None:
        """Add a layer whose value, or whose loss, is a result of the network."""
        self.place.results.add(Result(self, spec, node, is_output, with_loss))

    def _add_shared_results(self, main: Planner, ref: str) -> None:
        """Add the outputs inside of subnetworks of the main network that this extra network has, too."""
        for name in self.scope.shared_networks(ref):
            start = main.scope.specs[name].path + "/"
            for found in [f for f in main.place.results.entries if f.is_output and f.spec.path.startswith(start)]:
                path = self.scope.specs[name].path + found.spec.path[len(start) - 1 :]
                if all(path != other.spec.path for other in self.place.results.entries):
                    copy = Node(path, CopyLayer.with_defaults(), "")
                    copy.sources, copy.deps = [found.node], [found.node]
                    self._infer(copy)
                    spec = dataclasses.replace(found.spec, path=path)
                    self.add_result(spec, copy, is_output=True, with_loss=False)

    def hide_results(self, nodes: Sequence[Node]) -> None:
        """Take layers out of the results of the network, as they may not be computed."""
        self.place.results.hide(nodes)

    def layers_with_loss(self, start: int) -> list[Node]:
        """Return the layers with a loss among the planned nodes from an index on."""
        nodes = set(self.planned_nodes[start:])
        return [node for node in self.place.results.nodes_with_loss() if node in nodes]

    def take_losses(self, start: int) -> list[LossNode]:
        """Plan the losses of the planned nodes from an index on, and take them out of the network's losses."""
        nodes = set(self.planned_nodes[start:])
        found = [loss for loss in self.compilation.losses if loss.owner in nodes]  # of conditions inside
        self.compilation.losses[:] = [loss for loss in self.compilation.losses if loss not in found]
        while True:  # the targets may add further layers, with further losses
            taken = self.place.results.take_losses(set(self.planned_nodes[start:]))
            if not taken:
                return found
            found += [plan_loss(result, train=self.compilation.train) for result in taken]

    def add_loss(self, loss: LossNode) -> None:
        """Add a loss to those of the network."""
        self.compilation.losses.append(loss)


def _warn_of_misspelt_search(prefix: str) -> None:
    """Log if a part of the prefix looks like ``search`` misspelt: the network would not search."""
    for part in prefix[:-1].split(".")[1:]:
        if part != "search" and nearest_name(part, ["search"], cutoff=0.8) is not None:
            right = prefix.replace(part, "search")
            log.warn("The layers of %r make a network that does not search. Did you mean %r?" % (prefix, right))


class LoopPlanner:
    """Plans the network that is the unit of a `rec` layer: what runs before, in and after the loop.

    :param owner: the `rec` layer, with its sources
    :param parent: plans the network around
    """

    def __init__(self, owner: Node, parent: Planner) -> None:
        self._owner = owner
        self._parent = parent
        self._layer = rec_layer(owner)
        compilation = parent.compilation
        specs = compilation.parse(self._layer.unit, owner.path)
        if "output" not in specs:
            raise LayerError(
                "Layer %r: the unit has no layer 'output'. %s" % (owner.path, did_you_mean("output", specs)),
                topic="loops",
            )
        self._layers = StepLayers(
            self._layer,
            bool(owner.sources),
            specs,
            losses=compilation.loop_losses,
            search=parent.search,
            knows_axis=knows_axis(owner, parent, specs),
            whole=owner.path in compilation.whole_loops,
        )
        warn_of_loop(owner.path, self._layers)
        compilation.omitted_losses.update(dict.fromkeys(self._layers.omitted_losses()))
        #: The zone of each layer that is needed.
        self.zones: Mapping[str, Zone] = self._layers.zones.zones
        self._axis: IteratedAxis = iterated_axis(owner, parent, self._layers)
        self._scope = Scope(
            {name: self._as_planned(spec) for name, spec in specs.items()},
            owner.path,
            extern=compilation.extern_data,
        )
        self._param_scope = owner.scope if self._layer.name_scope is not None else join_scope(owner.scope, "rec")
        #: The planner of each zone; that of the step is another one in each round.
        self.planners: dict[Zone, Planner] = {}
        self._transfer = ZoneTransfer(owner, parent, self._scope, self._layers, self._axis, self.planners)
        self._step_indices: dict[Planner, Node] = {}
        self._unit = Unit()
        #: The templates of ``prev:`` values, once they are known.
        self.found = RoundResult()

    def _as_planned(self, spec: LayerSpec) -> LayerSpec:
        """Return a layer without sources if it takes its values from the target."""
        if not spec.cls.follows_target(spec.options, self._parent.search):
            return spec
        options = {k: v for k, v in spec.options.items() if not k.startswith("explicit_search_source")}
        return dataclasses.replace(spec, sources=(), options=options)

    def plan(self, known: RoundResult) -> Node:
        """Plan all zones and return the output for all steps.

        :param known: the templates of ``prev:`` values, if the same loop was planned before
        """
        owner, parent = self._owner, self._parent
        termination = LoopTermination(owner, parent, self._layers, self._axis, parent.find_around)
        for zone in (Zone.BEFORE, Zone.AFTER):
            place = dataclasses.replace(
                parent.place.inside(owner.path),
                loop_dim=self._transfer.loop_dim,
                iterated_dim=self._iterated_dim(),
                unit=self._unit,
            )
            self.planners[zone] = self._planner_of(zone, place)
        parent.compilation.inner[owner] = self.planners[Zone.AFTER]
        for name, zone in self.zones.items():
            if zone is Zone.BEFORE:
                self.planners[zone].node(name)
        self._depend_on_outside()
        results = Results()
        names = [name for name, zone in self.zones.items() if zone is Zone.STEP]
        if names:
            results = self._plan_step(names, termination, known)
        exits = {name: self._transfer.exit(name) for name in self._layers.outputs}
        for name, node in exits.items():
            spec = self._layers.specs[name]
            is_output = bool(spec.options.get("is_output_layer"))
            parent.add_result(spec, node, is_output=is_output, with_loss=self._layers.with_loss(spec))
        for result in results.entries:
            inside = self._transfer.exit_of(result.node, Zone.STEP, result.spec.path[len(owner.path) + 1 :])
            parent.add_result(result.spec, inside, is_output=result.is_output, with_loss=result.with_loss)
        owner.exits.update(exits)
        owner.plan_exit = self._exit_of_part
        owner.passes_on = exits["output"]
        return exits["output"]

    def _exit_of_part(self, ref: str) -> Optional[Node]:
        """Return a part of an output layer of the loop for all steps, such as "s/1" of a `split`; None: it has none."""
        name = self._scope.layer_of(ref)
        if name not in self._owner.exits:
            return None
        found = self._owner.exits[ref] = self._transfer.exit(ref)
        return found

    def _planner_of(self, zone: Zone, place: Place) -> Planner:
        return Planner(
            self._parent.compilation,
            self._scope,
            place,
            param_scope=self._param_scope,
            parent=self._parent,
            zone=(self, zone),
        )

    def _iterated_dim(self) -> Optional[Dim]:
        return self._axis.time_dim if self._axis.known else None

    def _depend_on_outside(self) -> None:
        """Depend on what the loop needs of the network around in any mode, so that checkpoints are the same."""
        owner, parent, where = self._owner, self._parent, "Layer %r" % self._owner.path
        values, params = self._layers.outside_references()
        for ref in values:
            outside = parent.try_resolve(ref, where)
            if outside is not None:
                owner.depend(outside)
        for ref in params:
            parent.compilation.late_owners.append((owner, functools.partial(parent.try_resolve, ref, where)))

    def resolve(self, planner: Planner, zone: Zone, ref: str, where: str) -> Optional[Node]:
        """Return the node of a name that means something else in a loop; None for any other name.

        That are ``prev:x``, ``:i``, the source and the target of the loop, and layers of another zone.

        :param planner: that of the zone in which the name occurs
        """
        if ref.startswith("prev:"):
            return self._transfer.prev(zone, ref[len("prev:") :], where)
        if ref == ":i":
            return self._step_index(planner)
        if ref in ("data", "data:source"):
            return self._transfer.source(zone, where)
        if ref.startswith("data:"):
            target = self._transfer.target(zone, ref[len("data:") :])
            if target is not None:
                return target
        name = self._scope.layer_of(ref)
        if name is None or self.zones.get(name) is zone:
            return None
        home = self._transfer.zone_of(name, where)
        return self._transfer.transfer(self.planners[home].resolve(ref, where), home, zone)

    def _step_index(self, planner: Planner) -> Node:
        if planner not in self._step_indices:
            layer = StepIndexLayer(planner.loop_dim)
            self._step_indices[planner] = planner.implicit_layer(self._owner, ":i", layer, [])
        return self._step_indices[planner]

    # --- the step ---

    def _plan_step(self, names: Sequence[str], termination: LoopTermination, known: RoundResult) -> Results:
        """Plan the layers of a step in rounds; return the results within the step."""
        around = self._parent.place.rounds
        is_final = all(a_round.whole for a_round in around)  # else the nodes are of no use later
        whole = bool(known.templates) and is_final
        known = dataclasses.replace(known, guessed=frozenset(names))
        first, without_batch = known, frozenset[str]()
        strict = False
        error: Optional[ConfigError] = None
        rounds = 0
        while rounds < MAX_ROUNDS + len(self._transfer.round.prevs):  # of a chain, each round finds one at least
            rounds += 1
            current = self._transfer.round = Round(known, strict=strict, whole=whole, without_batch=without_batch)
            planner = self.planners[Zone.STEP] = self._planner_of_step(current)
            try:
                for name in names:
                    planner.node(name)
                for ref in self._parts_for_later():
                    planner.resolve(ref, "Layer %r" % self._owner.path)
            except ConfigError:
                if strict and error is not None:  # it says more than that of a layer which lacks the value of prev:
                    raise error from None
                raise
            error = current.likely_error()
            nodes = self._layers_of_prevs(current)
            templates = {
                name: self._transfer.prev_template(Zone.STEP, name, node, guessed=not known.templates)
                for name, node in nodes.items()
            }
            settled = current.settled(templates)
            self.found = RoundResult(
                templates,
                {name: carried_state_of(node) for name, node in nodes.items()},
                frozenset(current.guessed),
            )
            unchanged = settled and current.guessed == known.guessed
            outer = next((a_round for a_round in around if a_round.tolerates(self._owner)), None)
            if not (settled and (strict or current.complete)):
                if unchanged and outer is not None:  # it lacks what that round does not know yet
                    for a_guess in current.guesses:
                        outer.add(a_guess)
                    return self._finish(planner, termination)
                strict = current.complete or unchanged
            else:
                if not without_batch and not any(a_round.guesses for a_round in around):
                    prevs = {current.prevs[name]: node for name, node in nodes.items()}
                    without_batch = guessed_batch(planner.planned_nodes, prevs)
                    if without_batch:
                        known, strict = first, False
                        continue
                if not (current.reuses_loops and is_final):
                    return self._finish(planner, termination)
                whole = True
            known = self.found
        raise LayerError(
            "Layer %r: the dims of 'prev:%s' do not converge: each step changes its shape."
            % (self._owner.path, "', 'prev:".join(self._transfer.round.prevs)),
            topic="loops",
        )

    def _finish(self, planner: Planner, termination: LoopTermination) -> Results:
        """Make the node that runs the loop, with the layers of the last round, and return the results within a step."""
        if self._transfer.round.reuses_loops:
            self._parent.place.rounds[0].reuses_loops = True
        self._make_run(planner, termination)
        return planner.place.results

    def _parts_for_later(self) -> list[str]:
        """Return the parts of layers of a step that layers behind the loop use."""
        later = [self._scope.specs[name] for name, zone in self.zones.items() if zone is Zone.AFTER]
        refs = dict.fromkeys(
            ref[len("prev:") :] if ref.startswith("prev:") else ref for s in later for ref in s.references()
        )
        homes = {ref: self._scope.layer_of(ref) for ref in refs if not ref.startswith("base:")}
        return [ref for ref, name in homes.items() if name != ref and self.zones.get(name or "") is Zone.STEP]

    def _layers_of_prevs(self, current: Round) -> dict[str, Node]:
        """Return the layers that the ``prev:`` values of a round name, by the name after ``prev:``.

        One in a subnetwork may be planned only now, and may name further ones.
        """
        nodes: dict[str, Node] = {}
        while True:
            names = [name for name in current.prevs if name not in nodes]
            if not names:
                return nodes
            nodes.update({name: self._transfer.part(Zone.STEP, name) for name in names})

    def _planner_of_step(self, current: Round) -> Planner:
        around = self._parent.place
        reuse = around.outer_reuse
        if self._layer.reuse_params is not None:  # like in RETURNN, layers moved out have separate parameters
            find_owner = self._parent.owner_of_params
            reuse = (ReuseLevel(self._layer.reuse_params, self._owner, find_owner, self._param_scope), *reuse)
        place = dataclasses.replace(
            around.inside(self._owner.path),
            planned_nodes=[],
            results=Results(),
            in_step=True,
            loop_dim=None,
            iterated_dim=self._iterated_dim(),
            outer_reuse=reuse,
            rounds=(current, *around.rounds),
            unit=self._unit,
        )
        return self._planner_of(Zone.STEP, place)

    def _make_run(self, planner: Planner, termination: LoopTermination) -> None:
        """Make the node that runs the loop."""
        transfer = self._transfer
        prevs = [self._previous_value(name) for name in transfer.round.prevs]
        end = planner.node("end") if self._layers.has_end else None
        inner = list(planner.planned_nodes)
        ending = termination.ending(end, inner)
        search = loop_search(inner, ending)
        nested = self._parent.in_step
        constrained = [] if self._parent.search else constrained_nodes(inner, nested=nested)
        check_kept_states(inner, nested=nested)
        deps = self._outside(inner, [prev.initial.node for prev in prevs if prev.initial.node is not None])
        length_deps = [*termination.length_deps, *self._nodes_of_length(deps, ending)]
        layer = LoopRunLayer(
            LoopPlan(
                transfer.loop_dim,
                self._owner.path,
                ending,
                prevs=tuple(prevs),
                slices=tuple(transfer.round.slices.items()),
                search=search,
                zones=types.MappingProxyType(
                    {n: (zone.value, self._layers.zones.reasons.get(n, "")) for n, zone in self.zones.items()}
                ),
                checkpoint_steps=bool(self._layer.checkpoint_steps),
                swap_memory=bool(self._layer.swap_memory),
                back_prop=self._layer.back_prop is not False,
                source_dim=None if self._axis.known else self._axis.source_dim,
                length_deps=tuple(length_deps),
                constrained=tuple(constrained),
            )
        )
        run = Node("%s/loop" % self._owner.path, layer, self._param_scope)
        run.in_search = self._parent.search
        run.inner = inner
        for dep in [*deps, *length_deps]:
            run.depend(dep)
        run.output = Data((), "int32")
        self._parent.planned_nodes.append(run)
        transfer.set_run(run, layer, None if search is None else Beam(search.beam_size, self._owner.path))

    def _previous_value(self, name: str) -> PreviousValue:
        """Return the value of the layer in the previous step, as a step reads it."""
        transfer = self._transfer
        node = transfer.part(Zone.STEP, name)
        prev = transfer.round.prevs[name]
        initial = transfer.initial_output(Zone.STEP, name, node, prev.output)
        state_of = None if carried_state_of(node) is None else recurrent_node(node)
        return PreviousValue(prev, node, initial, state_of)

    def _outside(self, inner: Sequence[Node], initials: Sequence[Node]) -> list[Node]:
        """Return the nodes outside of the loop that it reads.

        :param inner: the layers of a step
        :param initials: the layers with the values of ``prev:`` in the first step
        """
        known = set(inner)
        slices = self._transfer.round.slices
        read = [dep for node in [*inner, *slices] for dep in (node.deps if node in known else [node])]
        return list(dict.fromkeys([*(dep for dep in read if dep not in known), *initials]))

    def _nodes_of_length(self, deps: Sequence[Node], ending: Ending) -> list[Node]:
        """Return the node that determines the number of steps, even if no step uses it otherwise.

        :param deps: what the loop reads anyway
        """
        if ending.time_dim is not None:
            return []
        dim = self._axis.time_dim
        known = next((node for node in deps if node.planned and dim in node.output.dims), None)
        known = known or self._parent.node_with_dim(self._owner, dim)
        return [] if known is None else [known]
