"""Parse → plan: resolves names, orders the layers by their dependencies and infers every template. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Protocol

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.config.options import declared_options, log_inert
from returnn_tf.graph.batch_norm import declare_batch_norm_option
from returnn_tf.graph.constraints import check_output_constraints
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.node import Node
from returnn_tf.graph.params.reuse import ReuseLevel
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.source import SourceLayer
from returnn_tf.network.planning.build_state import BuildState
from returnn_tf.network.planning.checks import LayerError, check_source_dtypes, cycle_error, located, with_beam
from returnn_tf.network.planning.code_references import code_references
from returnn_tf.network.planning.extra_names import split_extra
from returnn_tf.network.planning.parse import (
    LayerSpec,
    describe_place,
    has_loss,
    join_scope,
    scope_name,
)
from returnn_tf.network.planning.plan_loss import plan_loss
from returnn_tf.network.planning.set_options import set_options
from returnn_tf.network.planning.sub_output import SubOutputLayer
from returnn_tf.tensor import SEQ_TAG, Data, Dim, batch_dim
from returnn_tf.tensor.expected_dims import check_dims


@dataclasses.dataclass(frozen=True)
class StepResult:
    """A layer inside of a layer in the step of a loop, of which the values for all steps are a result.

    :param is_output: whether it is one by is_output_layer
    :param with_loss: whether it has a loss
    """

    spec: LayerSpec
    node: Node
    is_output: bool
    with_loss: bool


_OPEN, _DONE = "open", "done"
#: Limit of nested networks: each level takes some frames of Python's stack.
MAX_DEPTH = 40


class StepPlanner(Protocol):
    """Plans the network inside a `rec` layer; builds on `NetworkBuilder`, see `returnn_tf.network.loops`."""

    def __call__(self, owner: Node, parent: NetworkBuilder) -> Node:
        """Return the output for all steps.

        :param owner: the `rec` layer, with its sources
        :param parent: plans the enclosing network
        """


class NetworkBuilder:
    """Plans one network dict; nested networks get builders of their own.

    :param inputs: data key -> node, for nested networks
    :param plan_steps: plans the networks of `rec` layers
    """

    def __init__(
        self,
        network: Mapping[str, Any],
        state: BuildState,
        plan_steps: StepPlanner,
        *,
        path: str = "",
        scope: str = "",
        parent: Optional[NetworkBuilder] = None,
        inputs: Optional[dict[str, Node]] = None,
    ) -> None:
        self.state = state
        self.plan_steps = plan_steps
        self.network = network
        self.behavior_version = state.behavior_version
        self.dim_names = state.dim_names
        self.search: bool = state.search if parent is None else parent.search
        #: Of a network that is not nested: prefix such as ``extra.search:`` -> its extra network of this name.
        self.extra_network: Optional[Callable[[str], NetworkBuilder]] = None
        self.path = path
        self.scope = scope
        self.parent = parent
        self.inputs = inputs
        self.depth: int = 0 if parent is None else parent.depth + 1
        if self.depth > MAX_DEPTH:
            raise LayerError("Layer %r: networks are nested more than %d levels deep." % (path, MAX_DEPTH))
        #: The builder that infers the templates: that of the innermost enclosing loop, or of the whole network.
        self.template_builder: NetworkBuilder = self if parent is None else parent.template_builder
        self.in_step: bool = parent.in_step if parent is not None else False
        self.loop_dim: Optional[Dim] = parent.loop_dim if parent is not None else None
        self.outer_reuse: tuple[ReuseLevel, ...] = parent.outer_reuse if parent is not None else ()
        self.specs = self.parse(network, path)
        self._registered = {
            spec.options["register_as_extern_data"]: name
            for name, spec in self.specs.items()
            if spec.options.get("register_as_extern_data") and spec.error is None
        }
        #: The layer that contains the network.
        self.owner: Optional[Node] = None
        self._nodes: dict[str, Node] = {}
        self._marks: dict[str, str] = {}

    def parse(self, network: Mapping[str, Any], path: str) -> dict[str, LayerSpec]:
        """Return the layers of the network, without those of extra networks."""
        specs = self.state.parse(network, path)
        return specs if self.parent is not None else {n: s for n, s in specs.items() if split_extra(n) is None}

    # --- which layers, in which order ---

    def build(self) -> None:
        """Plan the output layers, the layers with losses, and all that these need."""
        for name in self._roots():
            self.node(name)
        if not self.search:
            omitted = [s.path for s in self.specs.values() if has_loss(s, False) and not self._counts_loss(s)]
            self.state.omitted_losses.update(dict.fromkeys(omitted))
        if self.parent is None:
            for name, spec in self.state.parse(self.network, self.path).items():
                if split_extra(name) is not None and self._is_wanted(spec):
                    self.resolve(name, spec.where)

    def _roots(self) -> list[str]:
        roots = []
        for name, spec in self.specs.items():
            if self._is_wanted(spec) or (name == "output" and self.parent):
                roots.append(name)
        if not roots:
            raise ConfigError(
                "%s has no output: name a layer 'output', or give one a loss or is_output_layer=True."
                % ("network" if not self.path else "The network inside of layer %r" % self.path)
            )
        return roots

    def _is_wanted(self, spec: LayerSpec) -> bool:
        """Return whether a layer is planned even if no other layer needs it."""
        if spec.options.get("only_on_search") and not self.search:
            return False
        is_output = spec.options.get("is_output_layer") or (spec.name == "output" and not self.parent)
        return bool(is_output) or self._counts_loss(spec)

    def _counts_loss(self, spec: LayerSpec) -> bool:
        """Return whether the loss of a layer is computed: in a loop only to train or evaluate."""
        if self.in_step or self.loop_dim is not None:
            return self.state.loop_losses and not self.search and has_loss(spec, False)
        return has_loss(spec, self.search)

    def node(self, name: str) -> Node:
        """Return the planned layer of this network; plan it and its dependencies first if necessary."""
        if name in self._nodes:
            return self._nodes[name]
        stack: list[tuple[str, Iterator[str]]] = [self._enter(name)]
        while stack:
            current, rest = stack[-1]
            for dep in rest:
                mark = self._marks.get(dep)
                if mark == _OPEN:
                    raise self._cycle([n for n, _ in stack], dep)
                if mark is None:
                    stack.append(self._enter(dep))
                    break
            else:
                stack.pop()
                self._plan(self.specs[current])
                self._marks[current] = _DONE
        return self._nodes[name]

    def _enter(self, name: str) -> tuple[str, Iterator[str]]:
        if self._marks.get(name) == _OPEN:
            raise self._cycle([name], name)
        spec = self.specs[name]
        if spec.error is not None:
            raise spec.error
        self._marks[name] = _OPEN
        names = list(spec.references())
        if self._needs_target_template(spec):
            target = spec.options.get("target")
            names += [t for t in (target if isinstance(target, (list, tuple)) else [target]) if isinstance(t, str)]
        return name, iter([local for local in map(self._local_name, names) if local is not None])

    def _needs_target_template(self, spec: LayerSpec) -> bool:
        options = spec.options
        return bool(options.get("target")) and options.get("n_out") is None and options.get("out_dim") is None

    def _cycle(self, open_names: list[str], again: str) -> LayerError:
        return cycle_error(self.path, open_names, again, in_loop=self.in_step or self.loop_dim is not None)

    # --- names ---

    def _local_name(self, ref: str) -> Optional[str]:
        """Return the key in this network's dict that must be planned for a reference, or None."""
        if ref.startswith("layer:"):
            ref = ref[len("layer:") :]
        if ref in self.specs:
            return ref
        if ref.startswith("data:") and ref[len("data:") :] in self._registered and not self._is_input(ref[5:]):
            return self._registered[ref[len("data:") :]]
        if ref in self._registered:
            return self._registered[ref]
        head = ref
        while "/" in head:
            head = head.rpartition("/")[0]
            if head in self.specs:
                return head
        return None

    def _is_input(self, key: str) -> bool:
        return (self.inputs is not None and key in self.inputs) or key in self.state.extern_data

    def resolve(self, ref: str, where: str) -> Node:
        """Implement `Scope.resolve`."""
        if ref.startswith("layer:"):
            ref = ref[len("layer:") :]
        if ref.startswith("base:"):
            if self.parent is None:
                raise LayerError(
                    "%s: %r refers to the outer network, but this network is not nested in a layer." % (where, ref)
                )
            return self.parent.resolve(ref[len("base:") :], where)
        if ref.startswith("prev:"):
            in_loop = self.in_step or self.loop_dim is not None
            if in_loop and self.parent is not None and self.owner is not None and self.owner.layer.steps_with_loop:
                return self.parent.resolve("prev:" + self._name_outside(ref[len("prev:") :], where), where)
            if in_loop:
                raise LayerError(
                    "%s: %r needs the previous step, but the network that it is in is not computed in each step. Name "
                    "a layer of the loop instead: 'base:%s' means that of the network around." % (where, ref, ref)
                )
            raise LayerError(
                "%s: %r needs the previous step of a loop, but this network is not in a 'rec' layer." % (where, ref)
            )
        extra = split_extra(ref)
        if extra is not None and self.extra_network is not None:
            return self.extra_network(extra[0]).resolve(extra[1], where)
        local = self._local_name(ref)
        if local is not None:
            node = self.node(local)
            rest = ref[len(local) + 1 :] if ref.startswith(local + "/") else ""
            return self._sub_node(node, rest, where) if rest else node
        if ref == "data" or ref.startswith("data:"):
            return self._input(ref.partition(":")[2] or "data", where)
        known = list(self.specs) + ["data:%s" % key for key in self._input_keys()] + ["data"]
        hint = "Write 'data:%s' for the data key." % ref
        if ref not in self._input_keys():
            hint = self.state.key_hint(ref, known)
        if self.parent is not None and (ref in self.parent.specs or extra is not None):
            hint = "Write 'base:%s' for the outer layer." % ref
        raise LayerError("%s: there is no layer %r. %s" % (where, ref, hint))

    def _name_outside(self, name: str, where: str) -> str:
        """Return the name of a layer of this network in the network around."""
        assert self.parent is not None
        if self._local_name(name) is None:
            raise LayerError(
                "%s: there is no layer %r in this network, so 'prev:%s' is undefined. %s"
                % (where, name, name, did_you_mean(name, self.specs))
            )
        return "%s/%s" % (self.path[len(self.parent.path) :].lstrip("/"), name)

    def resolve_if_right(self, ref: str, where: str) -> Optional[Node]:
        """Return the node of a name that nothing needs in this mode, or None if there is a mistake in the layer."""
        levels: list[NetworkBuilder] = [self]
        while levels[-1].parent is not None:
            levels.append(levels[-1].parent)
        before = [dict(level._marks) for level in levels]
        try:
            return self.resolve(ref, where)
        except ConfigError:
            for level, marks in zip(levels, before):
                for name in [name for name, mark in level._marks.items() if mark == _OPEN and name not in marks]:
                    del level._marks[name]
            return None

    def knows(self, ref: str) -> bool:
        """Return whether the reference names a layer of this network."""
        return self._local_name(ref) is not None

    def find(self, ref: str, where: str) -> Optional[Node]:
        """Implement `Scope.find`."""
        return None if self._local_name(ref) is None else self.resolve(ref, where)

    def resolve_dim(self, dim: Dim) -> Dim:
        """Implement `Scope.resolve_dim`."""
        return self.state.resolve_dim(dim)

    def _input_keys(self) -> list[str]:
        return sorted(set(self.inputs or ()) | set(self.state.extern_data))

    def _input(self, key: str, where: str) -> Node:
        if self.inputs is not None and key in self.inputs:
            return self.inputs[key]
        if self.inputs is not None and key == "data":
            raise LayerError("%s: the nested network has no input 'data', since the layer has no sources." % where)
        level = self.parent
        while level is not None and key not in self.state.extern_data:
            if key in level._registered:
                return level.node(level._registered[key])
            level = level.parent
        if key not in self.state.extern_data:
            raise LayerError(
                "%s: there is no data key %r in extern_data. %s"
                % (where, key, self.state.key_hint(key, self._input_keys()))
            )
        return self.extern_node(key)

    def _sub_node(self, node: Node, name: str, where: str) -> Node:
        ctx = PlanContext(node, self)
        found: Optional[Node] = node.layer.sub_node(ctx, name)
        if found is None and name in node.sub_outputs:
            found = self.sub_output(node, name)
        if found is None:
            raise LayerError(
                "%s: layer %r has no part %r. %s" % (where, node.path, name, did_you_mean(name, node.layer.sub_names()))
            )
        return found

    # --- planning one layer ---

    def _plan(self, spec: LayerSpec) -> None:
        node = Node(spec.path, spec.cls(), self._scope_of(spec))
        with located(spec.path, str(spec.cls.class_name), node):
            node.sources = [self.resolve(s if isinstance(s, str) else s[0], spec.where) for s in spec.sources]
            node.deps = list(dict.fromkeys(node.sources))
            set_options(self, node, spec)
            self._depend_on_code(node, spec)
            self._infer(node)
        layer = node.layer
        if self.parent is None and layer.initial_output is not None:
            if layer.iterates_unit or not layer.gives_initial_output():
                log_inert(spec.where, "initial_output", "the layer is not in a loop")
        self._nodes[spec.name] = node
        self.planned(spec, node)

    def _depend_on_code(self, node: Node, spec: LayerSpec) -> None:
        """Add the layers that code in the options asks for; in a search, such code need not use the targets."""
        for ref in code_references(spec.options):
            if self.search and "data:" in ref:
                continue
            with contextlib.suppress(LayerError):  # the code may ask for it only if it exists
                node.depend(self.resolve(ref, spec.where))

    def planned(self, spec: LayerSpec, node: Node) -> None:
        """Register the outputs and losses of a planned layer."""
        self.register(spec, node, is_result=spec.name == "output" and self.parent is None)

    def register(self, spec: LayerSpec, node: Node, *, is_result: bool) -> None:
        """Register the loss of a planned layer, and its value if it is a result."""
        is_output = is_result or bool(spec.options.get("is_output_layer"))
        self.add_result(spec, node, is_output=is_output, with_loss=self._counts_loss(spec))

    @property
    def step_results(self) -> Optional[list[StepResult]]:
        """Return the list for results within the step of a loop, which has to bring them out; None outside."""
        return None if self.parent is None else self.parent.step_results

    def add_result(self, spec: LayerSpec, node: Node, *, is_output: bool, with_loss: bool) -> None:
        """Add a layer whose value, or whose loss, is a result of the network."""
        if self.step_results is not None:
            if is_output or with_loss:
                self.step_results.append(StepResult(spec, node, is_output, with_loss))
            return
        if is_output:
            self.state.outputs[spec.path] = node
        if with_loss:
            self.state.open_losses.append((self, node, spec))

    def infer_template(self, node: Node, ctx: PlanContext) -> Data:
        """Return the layer's own template; an enclosing loop may supply one while the sources are only half known."""
        if self.template_builder is self:
            return node.layer.template(ctx)
        return self.template_builder.infer_template(node, ctx)

    def check_out_shape(self, node: Node) -> None:
        """Check the template against the option ``out_shape``; an enclosing loop may know it only by half."""
        check_dims(node.output, node.layer.out_shape or (), self.resolve_dim)

    @property
    def sink(self) -> list[Node]:
        """Return the list that collects planned nodes in the order of their computation."""
        return self.state.nodes if self.parent is None else self.parent.sink

    def _infer(self, node: Node) -> None:
        """Infer the template of one node, with the changes by the base options."""
        layer = node.layer
        node.in_search = self.search
        ctx = PlanContext(node, self)
        node.replaced_dims.clear()
        node.own_output = None
        node.output = self.infer_template(node, ctx)
        check_source_dtypes(node)
        if not layer.ends_search:
            node.output = with_beam(node)
        if node.replaced_dims:
            node.own_output = node.output
            node.output = node.output.map_dims(lambda dim: node.replaced_dims.get(dim, dim))
        if layer.size_target:
            node.output = self._with_lengths_of(node, layer.size_target)
        if layer.batch_norm and not layer.normalizes_batch:
            declare_batch_norm_option(ctx, layer.batch_norm)
        check_output_constraints(ctx, node.output)
        index = layer.copy_output_loss_from_source_idx
        if index is not None and not 0 <= index < len(node.sources):
            raise ctx.error(
                "copy_output_loss_from_source_idx is %d, but there are %d sources." % (index, len(node.sources))
            )
        if layer.out_shape is not None:
            self.template_builder.check_out_shape(node)
        self.sink.append(node)

    def _with_lengths_of(self, node: Node, target: str) -> Data:
        other = self.target_data(node, target)
        data = node.output
        if data.time_axis is None or other.time_dim is None:
            raise ConfigError(
                "size_target %r: both need a time axis; the output is %s, the target %s." % (target, data, other)
            )
        node.depend(self.target_node(node, target))
        return data.with_dim(data.time_axis, other.time_dim)

    def owner_of_params(self, ref: str, where: str) -> Node:
        """Implement `Scope.owner_of_params`."""
        if ref.startswith("base:") and self.parent is not None:
            return self.parent.owner_of_params(ref[len("base:") :], where)
        local = self._local_name(ref)
        if local is None or local == ref:
            return self.resolve(ref, where)
        inside = self.state.inner_owners.get(self.node(local))
        return self.resolve(ref, where) if inside is None else inside(ref[len(local) + 1 :], where)

    def _scope_of(self, spec: LayerSpec) -> str:
        given: Optional[str] = spec.options.get("name_scope")
        if given is None or declared_options(spec.cls)["name_scope"].inert:
            return join_scope(self.scope, scope_name(spec.name))
        if given.startswith("/"):
            return given.strip("/")
        return join_scope(self.scope, given.strip("/"))

    # --- targets ---

    def target_node(self, owner: Node, target: str) -> Node:
        """Return the layer of this name, else the data key."""
        where = describe_place(owner.path, owner.layer.class_name)
        level: Optional[NetworkBuilder] = self
        if target.startswith(("layer:", "base:", "data:")):
            return self.resolve(target, where)
        while level is not None:
            if level.knows(target):
                return level.resolve(target, where)
            level = level.parent
        if target not in self.state.extern_data:
            known = list(self.specs) + list(self.state.extern_data)
            raise LayerError(
                "%s: the target %r is neither a layer nor a data key. %s"
                % (where, target, self.state.key_hint(target, known))
            )
        return self.extern_node(target)

    def target_data(self, owner: Node, target: str) -> Data:
        """Return the template of a target without counting a data key as used."""
        level: Optional[NetworkBuilder] = self
        while level is not None and not target.startswith(("layer:", "base:", "data:")):
            if level.knows(target):
                break
            level = level.parent
        else:
            key = target.partition(":")[2] if target.startswith("data:") else target
            if key in self.state.extern_data:
                return self.state.extern_data[key]
        return self.target_node(owner, target).output

    # --- the protocol for layers ---

    def bind_dim(self, declared: Dim, definition: Dim) -> None:
        """Implement `Builder.bind_dim`."""
        if self.resolve_dim(definition) is not declared:
            self.state.dims[declared] = definition

    def take_dim(self, owner: Node, dim: Dim) -> None:
        """Implement `DeclaredDims.take_dim`."""
        self.state.dim_owners[dim] = owner.path

    def knows_dim(self, owner: Node, dim: Dim) -> bool:
        """Implement `DeclaredDims.knows_dim`."""
        if dim.size is not None or dim.is_batch:
            return True
        if any(dim in data.dims for data in self.state.extern_data.values()):
            return True
        if dim in self.state.dim_owners:
            return self.state.dim_owners[dim] != owner.path
        if dim.expr is not None:
            return all(self.knows_dim(owner, operand) for operand in dim.expr.args)
        return any(dim in node.output.dims for node in owner.deps if node.planned)

    def subnetwork(
        self,
        owner: Node,
        network: dict[str, Any],
        inputs: dict[str, Node],
        scope: str,
        loop_dim: Optional[Dim] = None,
    ) -> Node:
        """Implement `Builder.subnetwork`."""
        builder = NetworkBuilder(
            network, self.state, self.plan_steps, path=owner.path, scope=scope, parent=self, inputs=inputs
        )
        builder.owner = owner
        if loop_dim is not None:
            builder.loop_dim = loop_dim
        if "output" not in builder.specs:
            raise LayerError(
                "Layer %r: the nested network has no layer 'output'. %s"
                % (owner.path, did_you_mean("output", builder.specs))
            )
        self.state.nested[owner] = builder
        self.state.inner_owners[owner] = builder.owner_of_params
        builder.build()
        return builder.node("output")

    def hide_results(self, nodes: Sequence[Node]) -> None:
        """Implement `Builder.hide_results`."""
        for path in [path for path, node in self.state.outputs.items() if node in nodes]:
            del self.state.outputs[path]
        if self.step_results is not None:
            self.step_results[:] = [result for result in self.step_results if result.node not in nodes]

    def layers_with_loss(self, start: int) -> list[Node]:
        """Implement `Builder.layers_with_loss`."""
        of_step = [result.node for result in self.step_results or () if result.with_loss]
        nodes = set(self.sink[start:])
        return [node for node in [*(node for _, node, _ in self.state.open_losses), *of_step] if node in nodes]

    def take_losses(self, start: int) -> list[LossNode]:
        """Implement `Builder.take_losses`; the targets may add further layers, with further losses."""
        found: list[LossNode] = []
        while True:
            nodes = set(self.sink[start:])
            taken = [entry for entry in self.state.open_losses if entry[1] in nodes]
            if not taken:
                return found
            self.state.open_losses = [entry for entry in self.state.open_losses if entry[1] not in nodes]
            found += [plan_loss(*entry, train=self.state.train) for entry in taken]

    def add_loss(self, loss: LossNode) -> None:
        """Implement `Builder.add_loss`."""
        self.state.losses.append(loss)

    def nested_node(self, owner: Node, name: str) -> Optional[Node]:
        """Implement `Builder.nested_node`."""
        scope = self.state.nested.get(owner)
        return None if scope is None else scope.find(name, "Layer %r" % owner.path)

    def extern_node(self, key: str) -> Node:
        """Implement `Builder.extern_node`."""
        if key == SEQ_TAG:
            self.state.extern_data.setdefault(key, Data((batch_dim,), "string"))
        if key not in self.state.extern_data:
            raise ConfigError(
                "there is no data key %r in extern_data. %s" % (key, self.state.key_hint(key, self.state.extern_data))
            )
        if key not in self.state.extern:
            layer = SourceLayer()
            layer.data_key = key
            node = Node("data" if key == "data" else "data:%s" % key, layer, "", extern_key=key)
            node.output = self.state.extern_data[key]
            self.state.extern[key] = node
            self.state.nodes.append(node)
        return self.state.extern[key]

    def node_with_dim(self, owner: Node, dim: Dim) -> Optional[Node]:
        """Implement `Builder.node_with_dim`, preferring what the layer needs anyway."""
        level: Optional[NetworkBuilder] = self
        used_inputs = sorted(self.state.extern.values(), key=lambda node: node.extern_key != "data")
        candidates = owner.deps + list((self.inputs or {}).values()) + used_inputs
        while level is not None:
            candidates += [node for node in level._nodes.values() if node is not owner]
            level = level.parent
        for node in candidates:
            if node.planned and dim in node.output.dims:
                return node
        key = next((k for k, data in self.state.extern_data.items() if dim in data.dims), None)
        return None if key is None else self.extern_node(key)

    def implicit_layer(self, owner: Node, name: str, layer: LayerBase, sources: Sequence[Node]) -> Node:
        """Implement `Builder.implicit_layer`."""
        node = Node("%s/%s" % (owner.path, name), layer, join_scope(owner.scope, scope_name(name)))
        node.sources = list(sources)
        node.deps = list(dict.fromkeys(sources))
        with located(node.path, layer.class_name, node):
            self._infer(node)
        return node

    def sub_output(self, owner: Node, name: str) -> Node:
        """Implement `Builder.sub_output`."""
        path = "%s/%s" % (owner.path, name)
        for node in self.sink:
            if node.path == path:
                return node
        layer = SubOutputLayer(sub_name=name)
        node = Node(path, layer, owner.scope, sources=[owner], deps=[owner])
        node.output, node.in_search = owner.sub_outputs[name], owner.in_search
        self.sink.append(node)
        return node

    def step_network(self, owner: Node) -> Node:
        """Implement `Builder.step_network`."""
        return self.plan_steps(owner, self)
