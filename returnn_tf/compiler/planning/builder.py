"""Parse → plan: orders the layers by their dependencies and infers every template. No TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.compiler.planning.checks import LayerError, check_source_dtypes, cycle_error, located, with_beam
from returnn_tf.compiler.planning.code_references import code_references
from returnn_tf.compiler.planning.extra_names import split_extra
from returnn_tf.compiler.planning.level import DONE, OPEN
from returnn_tf.compiler.planning.network_dims import NetworkDims
from returnn_tf.compiler.planning.parse import (
    LayerSpec,
    has_loss,
    is_on,
    join_scope,
    scope_name,
)
from returnn_tf.compiler.planning.results import Results
from returnn_tf.compiler.planning.set_options import set_options
from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.config.options import declared_options, log_inert
from returnn_tf.graph.batch_norm import declare_batch_norm_option
from returnn_tf.graph.constraints import check_output_constraints
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.expected_dims import check_dims

ERROR_TOPIC = "sources"


class NetworkBuilder(NetworkDims, Results):
    """Plans one network dict; nested networks get builders of their own.

    :param inputs: data key -> node, for nested networks
    :param plan_steps: plans the networks of `rec` layers
    """

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
        if not self.search and is_on(spec, "only_on_search"):
            return False
        is_output = spec.options.get("is_output_layer") or (spec.name == "output" and not self.parent)
        return bool(is_output) or self._counts_loss(spec)

    def node(self, name: str) -> Node:
        """Return the planned layer of this network; plan it and its dependencies first if necessary."""
        if name in self._nodes:
            return self._nodes[name]
        stack: list[tuple[str, Iterator[str]]] = [self._enter(name)]
        while stack:
            current, rest = stack[-1]
            for dep in rest:
                mark = self._marks.get(dep)
                if mark == OPEN:
                    raise self._cycle([n for n, _ in stack], dep)
                if mark is None:
                    stack.append(self._enter(dep))
                    break
            else:
                stack.pop()
                self._plan(self.specs[current])
                self._marks[current] = DONE
        return self._nodes[name]

    def _enter(self, name: str) -> tuple[str, Iterator[str]]:
        if self._marks.get(name) == OPEN:
            raise self._cycle([name], name)
        spec = self.specs[name]
        if spec.error is not None:
            raise spec.error
        self._marks[name] = OPEN
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

    def infer_template(self, node: Node, ctx: PlanContext) -> Data:
        """Return the layer's own template; an enclosing loop may supply one while the sources are only half known."""
        if self.template_builder is self:
            return node.layer.template(ctx)
        return self.template_builder.infer_template(node, ctx)

    def check_out_shape(self, node: Node) -> None:
        """Check the template against the option ``out_shape``; an enclosing loop may know it only by half."""
        check_dims(node.output, node.layer.out_shape or (), self.resolve_dim)

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

    def _scope_of(self, spec: LayerSpec) -> str:
        given: Optional[str] = spec.options.get("name_scope")
        if given is None or declared_options(spec.cls)["name_scope"].inert:
            return join_scope(self.scope, scope_name(spec.name))
        if given.startswith("/"):
            return given.strip("/")
        return join_scope(self.scope, given.strip("/"))

    # --- the protocol for layers ---

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

    def implicit_layer(self, owner: Node, name: str, layer: LayerBase, sources: Sequence[Node]) -> Node:
        """Implement `Builder.implicit_layer`."""
        node = Node("%s/%s" % (owner.path, name), layer, join_scope(owner.scope, scope_name(name)))
        node.sources = list(sources)
        node.deps = list(dict.fromkeys(sources))
        with located(node.path, layer.class_name, node):
            self._infer(node)
        return node

    def step_network(self, owner: Node) -> Node:
        """Implement `Builder.step_network`."""
        return self.plan_steps(owner, self)
