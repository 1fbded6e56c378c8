"""Loops that were planned in a round of a loop around them, for further rounds in which nothing changes for them.

A loop in the step of another one is planned once for what it can see of the network around. `LoopInputs` records that
while the loop is planned, `RememberedLoop` is what became of it, and `LoopMemory` finds it again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.compiler.planning.rounds import Guess, Round, RoundResult
from returnn_tf.config import ConfigError
from returnn_tf.graph.hidden_state import hidden_state_of
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.layer_plan import HiddenState
from returnn_tf.tensor import Data, Dim


@dataclasses.dataclass(frozen=True)
class Facts:
    """The properties of a node outside that a loop can see.

    :param layer: the class of the layer
    """

    template: Data
    layer: Optional[type[Layer]] = None
    state: Optional[HiddenState] = None

    @classmethod
    def of(cls, node: Node) -> Facts:
        """Return the facts on a planned node."""
        return cls(node.output, type(node.layer), hidden_state_of(node))

    def agree_with(self, other: Facts) -> bool:
        """Return whether a loop would be planned in the same way."""
        if self.layer is not other.layer or (self.state is None) != (other.state is None):
            return False
        if self.state is not None and other.state is not None:
            parts = self.state.parts, other.state.parts
            if (self.state.keys, self.state.unit, len(parts[0])) != (other.state.keys, other.state.unit, len(parts[1])):
                return False
            if not all(map(_equal, *parts)):
                return False
        return _equal(self.template, other.template)


def _equal(a: Data, b: Data) -> bool:
    """Return whether two templates are equal, except for dims of a static size that were made again."""
    facts = [(d.rank, d.dtype, d.feature_axis, d.time_axis, d.beam, d.unknown, d.sparse_dim is None) for d in (a, b)]
    dims = [d.dims if d.sparse_dim is None else (*d.dims, d.sparse_dim) for d in (a, b)]
    return facts[0] == facts[1] and a.vocab is b.vocab and all(x.agrees_with(y, strict=True) for x, y in zip(*dims))


@dataclasses.dataclass(frozen=True)
class Question:
    """Something that a loop asks about the network around it.

    :param kind: "node" of a reference, template of a "target", or whether the lengths of a "dim" are known
    """

    kind: str
    name: Union[str, Dim]


#: The properties of a node; or whether lengths are known.
Answer = Union[Facts, bool]


class LoopInputs:
    """All that the plan of a loop depends on.

    :param owner: the `rec` layer, with its sources and options
    """

    def __init__(self, owner: Node) -> None:
        self.deps = [Facts.of(dep) for dep in owner.deps]
        self.answers: dict[Question, Answer] = {}

    def agree_on_deps(self, owner: Node) -> bool:
        """Return whether the sources of the layer in another round are as they were."""
        deps = [Facts.of(dep) for dep in owner.deps]
        return len(deps) == len(self.deps) and all(a.agree_with(b) for a, b in zip(self.deps, deps))


def same_answer(a: Answer, b: Answer) -> bool:
    """Return whether a loop would be planned in the same way with either answer."""
    return a.agree_with(b) if isinstance(a, Facts) and isinstance(b, Facts) else a is b


@dataclasses.dataclass(frozen=True)
class RememberedLoop:
    """The result of planning a loop.

    :param unit: kept alive so that its id stays unique
    :param tolerance: of the rounds around, see `Round.tolerance`
    :param guesses: that the rounds around recorded
    :param error: why it can't be planned; None: it was planned
    :param found: the templates of its ``prev:`` values
    :param exits: the values for all steps
    :param plan_exit: see `Node.plan_exit`
    :param deps: what the layer needs
    :param replaced_dims: of the layer
    """

    unit: Any
    inputs: LoopInputs
    tolerance: Sequence[int]
    guesses: Sequence[Sequence[Guess]]
    error: Optional[ConfigError]
    found: RoundResult
    exits: Mapping[str, Node]
    plan_exit: Optional[Callable[[str], Optional[Node]]]
    deps: Sequence[Node]
    replaced_dims: Mapping[Dim, Dim]

    def holds_for(self, tolerance: Sequence[int]) -> bool:
        """Return whether rounds around of this tolerance would have the same outcome.

        What failed was guessed by the innermost round that tolerated it, so the rounds around that one do not matter;
        an error that none of them tolerated stays one where they tolerate less.
        """
        used = max((i + 1 for i, guesses in enumerate(self.guesses) if guesses), default=0)
        same = list(tolerance[:used]) == list(self.tolerance[:used])
        return same and (self.error is None or all(a <= b for a, b in zip(tolerance[used:], self.tolerance[used:])))

    def repeat(self, owner: Node, rounds: Sequence[Round]) -> Node:
        """Let the loop be as it was in an earlier round; its nodes are of no further use, as those of this round.

        :param rounds: the rounds of the loops around, the innermost first
        :return: the output for all steps
        :raises ConfigError: it can't be planned
        """
        for a_round, guesses in zip(rounds, self.guesses):
            for a_guess in guesses:
                a_round.add(a_guess)
        if self.error is not None:
            raise self.error
        rounds[0].reuses_loops = True
        for dep in self.deps:
            owner.depend(dep)
        owner.replaced_dims.update(self.replaced_dims)
        owner.exits.update(self.exits)
        owner.plan_exit = self.plan_exit
        owner.passes_on = self.exits["output"]
        return self.exits["output"]


class LoopMemory:
    """The loops in the steps of other loops that were planned so far."""

    def __init__(self) -> None:
        #: By path and identity of the unit.
        self._loops: dict[tuple[str, int], list[RememberedLoop]] = {}

    def find(
        self, owner: Node, unit: Any, rounds: Sequence[Round], ask: Callable[[Question], Answer]
    ) -> Optional[RememberedLoop]:
        """Return the plan of the same loop from an earlier round around it, or None if anything it sees has changed.

        :param rounds: the rounds of the loops around, the innermost first
        :param ask: answers a question about the network around
        """
        tolerance = [a_round.tolerance for a_round in rounds]
        for known in self._loops.get((owner.path, id(unit)), ()):
            if known.holds_for(tolerance) and known.inputs.agree_on_deps(owner):
                if all(same_answer(answer, ask(question)) for question, answer in known.inputs.answers.items()):
                    return known
        return None

    def plan(
        self,
        owner: Node,
        unit: Any,
        rounds: Sequence[Round],
        inputs: LoopInputs,
        plan: Callable[[], RoundResult],
    ) -> None:
        """Plan a loop and remember what becomes of it, also if that fails.

        :param rounds: the rounds of the loops around, the innermost first
        :param inputs: what the loop learns of the network around meanwhile
        :param plan: plans the loop, and returns the templates of its ``prev:`` values
        """
        tolerance = [a_round.tolerance for a_round in rounds]
        counts = [len(a_round.guesses) for a_round in rounds]
        found, error = RoundResult(), None
        try:
            found = plan()
        except ConfigError as exc:
            error = exc
            raise
        finally:
            guesses = [a_round.guesses[count:] for a_round, count in zip(rounds, counts)]
            loop = RememberedLoop(
                unit,
                inputs,
                tolerance,
                guesses,
                error,
                found,
                dict(owner.exits),
                owner.plan_exit,
                list(owner.deps),
                dict(owner.replaced_dims),
            )
            self._loops.setdefault((owner.path, id(unit)), []).append(loop)
