"""The layers of ours that the bases of a layer class in a config compute, as parts of its layer."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from returnn_tf.compat.modules.layers.scratch import ScratchGraph
from returnn_tf.graph.hidden_state import hidden_state_of
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data


class OwnLayers(abc.ABC):
    """Returns those layers and templates as the code of the class asks for them."""

    @abc.abstractmethod
    def layer(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Node:
        """Return a layer whose value the class uses."""

    @abc.abstractmethod
    def template(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Data:
        """Return the template of a layer."""


class PlannedOwnLayers(OwnLayers):
    """Plans the layers, and records them in the order of the requests.

    :param ctx: of the layer that they are parts of
    :param scratch: gets placeholders for their values
    """

    def __init__(self, ctx: PlanContext, scratch: ScratchGraph) -> None:
        self._ctx = ctx
        self._scratch = scratch
        self._planned: list[tuple[tuple[Any, ...], Node, list[Node]]] = []
        self.layers: list[Node] = []
        self.templates: list[Data] = []

    def _plan(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Node:
        request = own_class, dict(options), list(sources)
        for other, node, _ in self._planned:
            if other == request:
                return node
        nodes = self._ctx.planner.planned_nodes
        start = len(nodes)
        given = {"class": own_class.class_name, **options}
        node = self._ctx.planner.layer_of_dict(self._ctx.node, given, sources)
        self._planned.append((request, node, nodes[start:]))
        return node

    def layer(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Node:
        """Plan a layer, and make the layer of the class depend on it."""
        node = self._ctx.depend(self._plan(own_class, options, sources))
        self._scratch.provide(node)
        if self._ctx.node.passes_on is None and hidden_state_of(node) is not None:
            self._ctx.node.passes_on = node
        self.layers.append(node)
        return node

    def template(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Data:
        """Plan a layer, for its template only."""
        self.templates.append(self._plan(own_class, options, sources).output)
        return self.templates[-1]

    def drop_unused(self) -> None:
        """Take the layers out of the plan of which only the template was asked for."""
        nodes = self._ctx.planner.planned_nodes
        for _, node, planned in self._planned:
            if node not in self.layers:
                for each in planned:
                    nodes.remove(each)


class KnownOwnLayers(OwnLayers):
    """Returns what was found while the network was planned, in the same order.

    :param layers: the layers
    :param templates: the templates
    """

    def __init__(self, layers: Sequence[Node], templates: Sequence[Data]) -> None:
        self._layers = iter(layers)
        self._templates = iter(templates)

    def layer(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Node:
        """Return the next layer."""
        del own_class, options, sources
        return next(self._layers)

    def template(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Data:
        """Return the next template."""
        del own_class, options, sources
        return next(self._templates)
