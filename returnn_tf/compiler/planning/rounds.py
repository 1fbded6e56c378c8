"""The rounds in which the layers of a step are planned, until the templates of all ``prev:`` values are known.

Each round plans all layers with the templates that the round before found for ``prev:``; in the first one these are
unknown. The rounds and their end are described in docs/develop/planning.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.compiler.planning.checks import located
from returnn_tf.compiler.planning.initial_outputs import names_layer
from returnn_tf.config import ConfigError
from returnn_tf.config.options import declared_options
from returnn_tf.graph.layer import Node
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.nested import is_network, network_options
from returnn_tf.loops.nodes import PrevLayer
from returnn_tf.tensor import Data, Dim, batch_dim

MAX_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """The result of a round.

    :param templates: by name of the layers referenced by ``prev:``
    :param states: the hidden states of these layers
    :param guessed: paths of the layers whose templates are guesses
    """

    templates: Mapping[str, Data] = dataclasses.field(default_factory=dict)
    states: Mapping[str, Optional[HiddenState]] = dataclasses.field(default_factory=dict)
    guessed: frozenset[str] = frozenset()

    def prev(self, name: str) -> KnownPrev:
        """Return ``prev:<name>`` for the next round."""
        return KnownPrev(name, self.templates.get(name), self.states.get(name))


class KnownPrev(PrevLayer):
    """`PrevLayer` with the template that the layer had in the previous round.

    :param of: name of the layer
    :param data: its template, None in the first round
    :param hidden_state: the state that it carries from step to step, if any
    """

    def __init__(self, of: str, data: Optional[Data], hidden_state: Optional[HiddenState]) -> None:
        super().__init__(of)
        self._data = data
        self._state = hidden_state

    @property
    def is_known(self) -> bool:
        """Return whether an earlier round found a template."""
        return self._data is not None and not self._data.unknown

    def template(self, ctx: Any) -> Data:
        """Return the template known so far."""
        ctx.node.hidden_state = self._state
        return Data((), unknown=True) if self._data is None else self._data


@dataclasses.dataclass(frozen=True)
class Guess:
    """A guessed template.

    :param rank: how much the error tells, the lowest first; see `Round.likely_error`
    :param error: why there is no other one; None: it names a layer of unknown shape, so it tells nothing
    """

    node: Node
    rank: int = 0
    error: Optional[ConfigError] = None


class Round:
    """One attempt to plan the layers of a step, and what it found out.

    :param known: what the round before found
    :param strict: whether a layer that can't be planned is an error; else its template is guessed
    :param whole: whether loops within the step are planned though an earlier round has planned the same
    :param without_batch: paths of layers that are guessed without a batch axis, see `guessed_batch`
    """

    def __init__(
        self,
        known: RoundResult,
        *,
        strict: bool,
        whole: bool = False,
        without_batch: frozenset[str] = frozenset(),
    ) -> None:
        self.known = known
        self.strict = strict
        self.whole = whole
        self.without_batch = without_batch
        #: Whether a loop within the step was not planned, since an earlier round has planned the same.
        self.reuses_loops = False
        #: Whether a ``prev:`` value may get further axes from its initial output, which this round does not know.
        self.lacks_axes = False
        #: The nodes of ``prev:x`` by x, and the slices of values that were computed for all steps at once.
        self.prevs: dict[str, Node] = {}
        self.slices: dict[Node, Node] = {}
        #: The paths of layers with guessed templates.
        self.guessed: set[str] = set()
        #: The guesses in their order.
        self.guesses: list[Guess] = []
        self._guessed_nodes: set[Node] = set()

    @property
    def tolerance(self) -> int:
        """Return the level of tolerance: 0: no layer may fail; 1: those with unknown sources; 2: all, after a guess."""
        return 0 if self.strict else 2 if self.guesses or self.lacks_axes else 1

    def tolerates(self, node: Node) -> bool:
        """Return whether a layer that can't be planned may only lack what a later round will know."""
        return not self.strict and (self.half_known(node) or any(_state_unknown(dep) for dep in node.deps))

    def half_known(self, node: Node) -> bool:
        """Return whether the template of a layer may rest on a guess."""
        return bool(self.guesses) or self.lacks_axes or any(dep.output.unknown for dep in node.deps)

    def record(self, node: Node, error: ConfigError) -> None:
        """Record that the template of a layer is a guess, and why."""
        unknown = [dep.path for dep in node.deps if dep.output.unknown]
        if any(path in str(error) for path in unknown):
            self.add(Guess(node))
            return
        # Layers whose sources are all known come first, though the dependencies of those may be guesses; then those
        # whose sources are guesses; then those with an unknown source, of which the error does not speak.
        rank = 2 if unknown else 1 if self._guessed_nodes & set(node.deps) else 0
        try:
            with located(node.path, node.layer.class_name, node):
                raise error
        except ConfigError as exc:
            self.add(Guess(node, rank, _without_frames(exc)))

    def add(self, a_guess: Guess) -> None:
        """Add a guess."""
        self.guesses.append(a_guess)
        self._guessed_nodes.add(a_guess.node)
        self.guessed.add(a_guess.node.path)

    def likely_error(self) -> Optional[ConfigError]:
        """Return the error that is closest to a cause in the config, or None."""
        failed = [a_guess for a_guess in self.guesses if a_guess.error is not None]
        return min(failed, key=lambda a_guess: a_guess.rank).error if failed else None

    @property
    def complete(self) -> bool:
        """Return whether nothing is guessed or unknown."""
        return not self.guessed and not any(prev.output.unknown for prev in self.prevs.values())

    def settled(self, templates: Mapping[str, Data]) -> bool:
        """Return whether the templates of ``prev:`` are what they were in this round.

        :param templates: by the name after ``prev:``
        """
        return all(same_template(data, self.prevs[name].output) for name, data in templates.items())


def same_template(a: Data, b: Data) -> bool:
    """Return whether two templates are the same, except for dims that a later round created again."""
    return (
        a.unknown == b.unknown
        and a.rank == b.rank
        and a.dtype == b.dtype
        and a.feature_axis == b.feature_axis
        and (a.sparse_dim is None) == (b.sparse_dim is None)
        and all(x is y or x.agrees_with(y) for x, y in zip(a.dims, b.dims))
    )


def _without_frames(error: ConfigError) -> ConfigError:
    """Return an error to keep, without the tracebacks of it and of its causes.

    A traceback holds the frames of all callers, and these hold the error: their local variables, as a dict of
    parameters, would stay in memory until Python collects cycles.
    """
    each: Optional[BaseException] = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


def _state_unknown(node: Node) -> bool:
    """Return whether the node is ``prev:x`` for a layer without a known hidden state yet."""
    return isinstance(node.layer, PrevLayer) and node.hidden_state is None


def guess(ctx: PlanContext, a_round: Round) -> Data:
    """Guess the output of a layer with unknown sources: a vector per sequence, if its size is known."""
    node, layer = ctx.node, ctx.node.layer
    out = None
    if layer.n_out is None and layer.out_dim is None and ctx.target_dim() is None:
        size = _nested_size(layer)
        if size is None:
            return Data((), unknown=True)
        out = ctx.new_feature(size)
    batch = [d for s in node.deps for d in s.output.dims if d.is_batch][:1]
    if not batch and node.path not in a_round.without_batch:
        batch = [batch_dim]
    out = ctx.out_feature() if out is None else out
    return Data((*batch, out), ctx.float_dtype, feature_axis=len(batch))


def guessed_batch(step: Sequence[Node], prevs: Mapping[Node, Node]) -> frozenset[str]:
    """Return the paths of the layers of a step that have a batch axis only since that was guessed.

    A layer has one if a source has; it has one of its own if it reads values for each sequence from outside of the
    step, makes the axis by its options, carries a state, or chooses labels.

    :param step: the planned layers of the step
    :param prevs: of these, ``prev:`` values -> their layers
    """
    inside = set(step)
    with_batch = [node for node in step if node.output.batch_axis is not None]

    def has_its_own(node: Node) -> bool:
        if node in prevs:
            return names_layer(prevs[node].layer.initial_output)
        sources = [dep for dep in node.deps if dep.output.batch_axis is not None]
        return not sources or not inside.issuperset(sources) or node.layer.has_memory or node.layer.chooses_labels

    found: set[Node] = set()
    more = set(filter(has_its_own, with_batch))
    while more:
        found |= more
        rest = [node for node in with_batch if node not in found]
        more = {node for node in rest if prevs.get(node) in found or not found.isdisjoint(node.deps)}
    return frozenset(node.path for node in with_batch if node not in found)


def _nested_size(layer: Any) -> Optional[int]:
    """Return the feature size that a planned layer takes from its subnetwork or unit, or None.

    :param layer: with the options as attributes
    """
    for info in declared_options(type(layer)).values():
        size = _size_of_nested(getattr(layer, info.attribute), 0) if info.network else None
        if size is not None:
            return size
    return None


def _size_of_nested(nested: Any, depth: int) -> Optional[int]:
    if not isinstance(nested, Mapping):
        return None
    return _size_of(nested, "output", depth) if is_network(nested) else _size_of({"output": nested}, "output", depth)


def _size_of(network: Mapping[str, Any], name: Any, depth: int) -> Optional[int]:
    """Return the size that the layer dict of this name gives, or that of the sources whose features it keeps."""
    layer = network.get(name) if isinstance(name, str) else None
    if not isinstance(layer, Mapping) or depth > 50:  # sources may be in a cycle
        return None
    if isinstance(layer.get("n_out"), int):
        return int(layer["n_out"])
    if isinstance(layer.get("out_dim"), Dim):
        size: Optional[int] = layer["out_dim"].size
        return size
    for key in network_options(LAYERS.find(layer.get("class"))):
        size = _size_of_nested(layer.get(key), depth + 1)
        if size is not None:
            return size
    cls = LAYERS.find(layer.get("class"))
    if cls is None or not cls.keeps_features:
        return None
    sources = layer.get("from")
    sources = list(sources) if isinstance(sources, (list, tuple)) else [sources]
    sizes = [_size_of(network, source, depth + 1) for source in sources]
    if cls.joins_features:
        return sum(size or 0 for size in sizes) if sizes and None not in sizes else None
    return next((size for size in sizes if size is not None), None)
