"""Builders for the three parts of a step network: before the loop, one step of it, and after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Protocol

from returnn_tf.compiler.loops.analysis import Zone, Zones
from returnn_tf.compiler.planning.builder import NetworkBuilder
from returnn_tf.compiler.planning.checks import located
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.results import InnerResult
from returnn_tf.config import ConfigError
from returnn_tf.config.options import OptionError
from returnn_tf.graph.layer_base import LayerBase
from returnn_tf.graph.node import Node
from returnn_tf.graph.params.reuse import ReuseLevel
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.loops.nodes import PrevLayer, StepIndexLayer
from returnn_tf.tensor import Data, Dim


class Loop(Protocol):
    """The loop that a zone is part of: the other zones, and the transitions between them."""

    owner: Node
    scope: str
    zones: Zones
    loop_dim: Dim
    builders: dict[Zone, ZoneBuilder]

    def add(self, builder: NetworkBuilder, name: str, layer: LayerBase, sources: Sequence[Node]) -> Node:
        """Plan a node that the config does not name."""

    def source_in(self, builder: ZoneBuilder, where: str) -> Node:
        """Return the source of the loop: all steps, or the current one."""

    def target_in(self, builder: ZoneBuilder, key: str) -> Optional[Node]:
        """Return the label of the current step if a data key is the target of the loop in this mode, else None."""

    def bring(self, node: Node, zone: Zone, builder: ZoneBuilder) -> Node:
        """Return a node of one zone for use in another."""

    def zone_of(self, name: str, where: str) -> Zone:
        """Return where a layer of the loop is computed."""

    def prev(self, builder: ZoneBuilder, ref: str, where: str) -> Node:
        """Return ``prev:<ref>`` for a layer of this builder's zone."""

    def guess(self, node: Node, ctx: PlanContext) -> Data:
        """Guess the output of a layer while its sources are unknown."""


class ZoneBuilder(NetworkBuilder):
    """Plans those layers of a step network that are in one zone; names of other zones are brought over.

    :param loop: the step network
    """

    def __init__(self, loop: Loop, zone: Zone, network: dict[str, Any], parent: NetworkBuilder) -> None:
        super().__init__(
            network, parent.state, parent.plan_steps, path=loop.owner.path, scope=loop.scope, parent=parent, inputs=None
        )
        for name, spec in self.specs.items():
            if spec.cls.follows_target(spec.options, self.search):
                options = {k: v for k, v in spec.options.items() if not k.startswith("explicit_search_source")}
                self.specs[name] = dataclasses.replace(spec, sources=(), options=options)
        reuse = loop.owner.layer.reuse_params
        if reuse is not None and zone is Zone.STEP:  # like in RETURNN, layers moved out have parameters of their own
            self.outer_reuse = (ReuseLevel(reuse, loop.owner, parent, loop.scope), *self.outer_reuse)
        self._outer_templates, self.template_builder = parent.template_builder, self
        self.loop = loop
        self.zone = zone
        self.in_step = zone is Zone.STEP or parent.in_step
        self.loop_dim: Optional[Dim] = None if zone is Zone.STEP else loop.loop_dim
        self.strict = True
        self._has_guessed = False
        self._guesses: set[Node] = set()
        #: The errors of layers whose sources are all known, though the dependencies of those may be guesses.
        self.errors: list[ConfigError] = []
        #: Those of layers whose sources are guesses themselves.
        self.doubtful: list[ConfigError] = []
        #: Those of layers with an unknown source, of which the error does not speak.
        self.vague: list[ConfigError] = []
        self._own_sink: list[Node] = []
        self._own_results: list[InnerResult] = []
        self._index: Optional[Node] = None

    @property
    def sink(self) -> list[Node]:
        """Return the list for planned nodes: a step has its own; the other layers belong to the network outside."""
        if self.zone is Zone.STEP:
            return self._own_sink
        assert self.parent is not None
        return self.parent.sink

    @property
    def step_results(self) -> Optional[list[InnerResult]]:
        """Return the list for results within the step of this loop, or of one around it; None if there is none."""
        assert self.parent is not None
        return self._own_results if self.zone is Zone.STEP else self.parent.step_results

    def _local_name(self, ref: str) -> Optional[str]:
        name = self.any_name(ref)
        return name if name is not None and self.loop.zones.zones.get(name) is self.zone else None

    def any_name(self, ref: str) -> Optional[str]:
        """Return the layer of this network, in whatever zone, that a reference names; None if it names none."""
        return NetworkBuilder._local_name(self, ref)

    def resolve(self, ref: str, where: str) -> Node:
        """Resolve names as in any network, plus ``prev:x``, ``:i``, ``data:source`` and the layers of other zones."""
        if ref.startswith("prev:"):
            return self.loop.prev(self, ref[len("prev:") :], where)
        if ref == ":i":
            return self._step_index()
        if ref in ("data", "data:source"):
            return self.loop.source_in(self, where)
        if ref.startswith("data:"):
            target = self.loop.target_in(self, ref[len("data:") :])
            if target is not None:
                return target
        name = self.any_name(ref)
        if name is None or self.loop.zones.zones.get(name) is self.zone:
            return super().resolve(ref, where)
        other = self.loop.builders[self.loop.zone_of(name, where)]
        return self.loop.bring(other.resolve(ref, where), other.zone, self)

    def owner_of_params(self, ref: str, where: str) -> Node:
        """Return the layer itself, wherever it is computed."""
        name = self.any_name(ref)
        zone = None if name is None else self.loop.zones.zones.get(name)
        if zone is None or zone is self.zone or ref.startswith("base:"):
            return super().owner_of_params(ref, where)
        return self.loop.builders[zone].owner_of_params(ref, where)

    def _step_index(self) -> Node:
        if self._index is None:
            self._index = self.loop.add(self, ":i", StepIndexLayer(self.loop_dim), [])
        return self._index

    def planned(self, spec: LayerSpec, node: Node) -> None:
        """Ignore outputs and losses: those of the values of all steps count, and the loop handles them."""

    def infer_template(self, node: Node, ctx: PlanContext) -> Data:
        """Infer the template; while the values of the previous step are unknown, their dependents may be unknown too.

        The same holds for dependents of a guess: a cell whose output is a guess has no hidden state yet.
        """
        if self.strict or not (self._half_known(node) or any(_state_unknown(s) for s in node.deps)):
            return self._outer_templates.infer_template(node, ctx)
        try:
            return self._outer_templates.infer_template(node, ctx)
        except OptionError:
            raise
        except ConfigError as exc:
            self._record_error(node, exc)
            node.params.clear()
            node.owned.clear()
            self._has_guessed = True
            return self.loop.guess(node, ctx)

    def _half_known(self, node: Node) -> bool:
        return self._has_guessed or any(s.output.unknown for s in node.deps)

    def check_out_shape(self, node: Node) -> None:
        """Check the template against the option ``out_shape``, unless it may rest on a guess."""
        if self.strict or not self._half_known(node):
            self._outer_templates.check_out_shape(node)

    def _record_error(self, node: Node, error: ConfigError) -> None:
        unknown = [s.path for s in node.deps if s.output.unknown]
        if not any(path in str(error) for path in unknown):
            found = self.vague if unknown else self.doubtful if self._guesses & set(node.deps) else self.errors
            try:
                with located(node.path, node.layer.class_name, node):
                    raise error
            except ConfigError as exc:
                found.append(exc)
        self._guesses.add(node)


def _state_unknown(node: Node) -> bool:
    """Return whether the node is ``prev:x`` for a layer without a known hidden state yet."""
    return isinstance(node.layer, PrevLayer) and node.layer.hidden_state is None
