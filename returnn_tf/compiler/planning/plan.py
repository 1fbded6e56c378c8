"""`Plan`: a network as a typed graph of layers in the order of their computation. No TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from returnn_tf.compiler.planning.drawing import draw_layers
from returnn_tf.compiler.planning.layer_table import layers_html, totals
from returnn_tf.compiler.planning.rounded_params import rounded_params
from returnn_tf.config.errors import DimError, did_you_mean
from returnn_tf.graph.carried_state import KeptSpec
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.rounded_variable import RoundedSpec
from returnn_tf.graph.sealing import tuple_or_view
from returnn_tf.graph.semantics import Semantics
from returnn_tf.tensor import Data
from returnn_tf.util.html import folded


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """A planned network. It is immutable.

    :param nodes: all layers, each after everything that it needs
    :param outputs: the layers whose values are results, by path: "output" and those with is_output_layer
    :param losses: in the order of the network
    :param extern: the inputs by data key
    :param semantics: what the settings say about its values
    :param mistakes: in layers that nothing needs, and what is probably not meant; texts for the user
    :param omitted_losses: the layers in loops whose losses are not computed, as the network is neither for training nor
        for evaluation
    """

    nodes: Sequence[Node]
    outputs: Mapping[str, Node]
    losses: Sequence[LossNode]
    extern: Mapping[str, Node]
    extern_data: Mapping[str, Data]
    semantics: Semantics
    train: bool
    search: bool
    mistakes: Sequence[str] = ()
    omitted_losses: Sequence[str] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, tuple_or_view(getattr(self, field.name)))

    @property
    def params(self) -> dict[str, ParamSpec]:
        """Return all parameters by name, in the order of the layers."""
        return {spec.name: spec for node in self.all_nodes() for spec in node.owned}

    @property
    def adapted(self) -> dict[str, ParamSpec]:
        """Return the parameters with an adapter by name."""
        return {name: spec for name, spec in self.params.items() if spec.adapter is not None}

    @property
    def plain_params(self) -> dict[str, ParamSpec]:
        """Return the parameters by name but the matrices of adapters: those that the network has without them."""
        adapters = [spec.adapter for spec in self.adapted.values() if spec.adapter is not None]
        matrices = {spec.name for adapter in adapters for spec in (adapter.first, adapter.second)}
        return {name: spec for name, spec in self.params.items() if name not in matrices}

    @functools.cached_property
    def rounded(self) -> Mapping[str, RoundedSpec]:
        """Return the parameters that are stored as smaller numbers, by name.

        :raises ConfigError: see `rounded_params`
        """
        options = self.semantics.quantization
        return {} if options is None else rounded_params(list(self.all_nodes()), options)

    @property
    def layers(self) -> dict[str, Node]:
        """Return all layers by path, with those inside loops; ``.output`` of one is its template."""
        return {node.path: node for node in self.visible_nodes()}

    @property
    def kept(self) -> dict[str, KeptSpec]:
        """Return the states that layers keep from batch to batch, by name."""
        return {spec.name: spec for node in self.all_nodes() for spec in node.kept.values()}

    def all_nodes(self) -> Iterator[Node]:
        """Return all layers, with those inside loops in front of the loop."""
        todo = list(reversed(self.nodes))
        while todo:
            node = todo.pop()
            if node.inner:
                todo += list(reversed(node.inner))
            yield node

    def visible_nodes(self) -> list[Node]:
        """Return all layers to show to users, with those inside loops."""
        return [node for node in self.all_nodes() if not node.layer.is_connector]

    def svg(self) -> str:
        """Return a drawing."""
        return draw_layers(self.visible_nodes(), {loss.owner for loss in self.losses})

    def table_html(self) -> str:
        """Return the table of layers, losses and totals as HTML."""
        return layers_html(self.visible_nodes(), self.losses, self.params, self.rounded)

    def _repr_html_(self) -> str:
        return self.table_html() + folded("drawing", self.svg())

    def __repr__(self) -> str:
        return "<Plan %s, %s>" % ("; ".join(self.outputs), totals(self.visible_nodes(), self.params, self.rounded))

    def by_path(self) -> dict[str, Node]:
        """Return all layers by path."""
        return {node.path: node for node in self.nodes}

    def find_nodes(self, names: Sequence[str], what: str = "fetch") -> list[Node]:
        """Return layers by path.

        :param what: how an error begins: where the names come from
        :raises ConfigError: one is not part of the planned network
        """
        by_path = self.by_path()
        for name in names:
            if name not in by_path:
                raise DimError(
                    "%s: layer %r is not part of the network. Nothing needs it, unless it has "
                    "is_output_layer=True. %s" % (what, name, did_you_mean(name, by_path))
                )
        return [by_path[name] for name in names]

    def needed(self, nodes: Iterable[Node], losses: Iterable[LossNode] = (), *, params: bool = False) -> set[Node]:
        """Return everything that must be computed for these layers and losses.

        :param params: also what only provides parameters; with losses this is always included, for its constraints
        """
        todo = list(nodes)
        for loss in losses:
            todo += loss_deps(loss)
            params = True
        seen: set[Node] = set()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += [*node.deps, *node.param_deps] if params else node.deps
        return seen | self._batch_size_source(seen)

    def _batch_size_source(self, needed: set[Node]) -> set[Node]:
        """Return an input that gives the batch size to layers with no other source of it: in search without inputs."""
        inputs = [node for node in self.extern.values() if node.output.batch_axis is not None]
        if any(node in needed for node in inputs) or all(node.output.batch_axis is None for node in needed):
            return set()
        return set(inputs[:1])

    def roots(self) -> list[Node]:
        """Return outputs and layers with a loss, each once."""
        return list(dict.fromkeys([*self.outputs.values(), *self.loss_owners().values()]))

    def loss_owners(self) -> dict[LossNode, Node]:
        """Return the layer of each loss, in the order of the losses."""
        return {loss: loss.owner for loss in self.losses}

    def __str__(self) -> str:
        lines = []
        for node in self.nodes:
            sources = ", ".join(s.path for s in node.sources)
            lines.append("%s: %s(%s) -> %s" % (node.path, node.layer.class_name, sources, node.output))
        return "\n".join(lines)


def loss_deps(loss: LossNode) -> list[Node]:
    """Return the nodes that a loss needs besides its own layer."""
    deps: list[Node] = []
    if loss.target is not None:
        deps.append(loss.target)
    if loss.seq_tags is not None:
        deps.append(loss.seq_tags)
    for value in vars(loss.loss).values():
        if isinstance(value, Node):
            deps.append(value)
        elif isinstance(value, (list, tuple)):
            deps += [v for v in value if isinstance(v, Node)]
    return deps
