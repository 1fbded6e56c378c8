"""The parts of a single step: which layers give scores, which states they change, and which of these come a step late.

A state that depends on a label of its own step is *delayed*: that label is known only after the step, so the state is
brought up to date at the start of the next one. By then the other states have moved on already. What a delayed state
reads of them, or of layers that depend on no label, is therefore kept from the step before: as a further state.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Optional

from returnn_tf.compiler.planning.step_layers import rec_layer
from returnn_tf.compiler.planning.zones import reachable
from returnn_tf.config.errors import ExportError
from returnn_tf.export.meta.names import op_name
from returnn_tf.export.steps.loops import StepLoop
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.outer_search import gives_scores
from returnn_tf.loops.nodes import StepIndexLayer
from returnn_tf.loops.plan import Ending, PreviousValue
from returnn_tf.tensor import Data


@dataclasses.dataclass(frozen=True)
class State:
    """A value that is carried from step to step.

    :param name: of its variable
    :param key: where the step reads it: the node of ``prev:``, (layer, key of the state), or a layer itself
    :param data: its template
    :param of: the layer whose value it is, None for a state of a layer
    :param delayed: whether it depends on a label of its own step
    :param before: of a state that another one keeps as it was before the step: the key of that other one
    """

    name: str
    key: Any
    data: Data
    of: Optional[Node] = None
    delayed: bool = False
    before: Any = None

    @property
    def is_value(self) -> bool:
        """Return whether it is the value of a layer in the last step, for delayed states only."""
        return self.of is not None and self.key is self.of


class StepParts:
    """The parts of a graph of single steps.

    :raises ConfigError: what a state needs can't be kept, or two states have the same name
    """

    def __init__(self, step: StepLoop) -> None:
        self.step = step
        self._inner = frozenset(step.run.inner)
        self._prevs: dict[Node, PreviousValue] = {prev.node: prev for prev in step.loop.prevs}
        #: The choices whose scores the search gets, in order.
        self.scored: list[Node] = [node for node in step.choices if gives_scores(node)]
        if not self.scored:
            raise ExportError(
                "Single steps of layer %r: no choice gives scores, as all have score_dependent=False." % step.path
            )
        self.ending: Ending = step.loop.ending
        needed = reachable(self._roots(), lambda node: [*self._now(node), *self._before(node)])
        #: The layers of a step that matter, in the order of their computation.
        self.nodes: list[Node] = [node for node in step.run.inner if node in needed]
        self._check_layers()
        #: (value for all steps, node for its slice in the step).
        self.slices: list[tuple[Node, Node]] = [(o, n) for o, n in step.loop.slices if n in needed]
        self._dependent = self._dependents()
        self.states: list[State] = self._find_states()
        #: What is computed in a step besides the scores, and what at the start of the next one, for delayed states.
        self.now: list[Node] = self._sources([s for s in self.states if not s.delayed]) + self._end(delayed=False)
        self.later: list[Node] = self._sources([s for s in self.states if s.delayed]) + self._end(delayed=True)
        self.states += self._kept_for_later()
        self.now = list(dict.fromkeys(self.now + [s.of for s in self.states if s.of is not None and not s.delayed]))
        self._check_names()

    # --- which layers ---

    def _roots(self) -> list[Node]:
        end = [] if self.ending.end is None else [self.ending.end]
        return [*self.step.choices, *end]

    def _check_layers(self) -> None:
        for node in self.nodes:
            if node.layer.is_about_search:
                raise ExportError(
                    "Single steps of layer %r: layer %r (class %r) is about the hypotheses of the search, which a "
                    "decoder keeps on its own. Take it out of what the choices depend on."
                    % (self.step.path, node.path, node.layer.class_name)
                )

    def _now(self, node: Node) -> list[Node]:
        """Return the layers of the same step that a layer reads; of a choice its scores."""
        if node in self.step.choices:
            return [node.sources[0]] if node in self.scored else []
        return [dep for dep in node.deps if dep in self._inner]

    def _before(self, node: Node) -> list[Node]:
        """Return the layers whose values of the step before a layer reads."""
        if node not in self._prevs:
            return []
        prev = self._prevs[node]
        return [prev.of, *([] if prev.state_of is None else [prev.state_of])]

    def _dependents(self) -> set[Node]:
        """Return the layers that depend on a label of the same step, the choices included."""
        found = set(self.step.choices)
        for node in self.nodes:
            if node not in found and any(dep in found for dep in self._now(node)):
                found.add(node)
        return found

    def closure(self, roots: Iterable[Node], *, stop: Iterable[Node] = ()) -> list[Node]:
        """Return the layers of the same step that some need, in order; the label of a choice comes from outside.

        :param stop: layers whose values are known
        """
        known = {*self.step.choices, *stop}
        needed = reachable(roots, lambda node: [] if node in known else self._now(node))
        return [node for node in self.nodes if node in needed]

    @property
    def reads_index(self) -> bool:
        """Return whether a layer reads the step index ``:i`` itself."""
        return any(isinstance(node.layer, StepIndexLayer) for node in self.nodes)

    @property
    def _unstacks(self) -> bool:
        return any(node.layer.unstacks_frames for node in self.nodes)

    @property
    def steps_are_frames(self) -> bool:
        """Return whether the step index is the position of a frame.

        It is if the step takes a frame of a source, or if it reads ``:i`` and nothing but the number of frames ends it.
        """
        return bool(self.slices) or self._unstacks or (self.reads_index and self.ending.end is None)

    @property
    def steps_are_known(self) -> bool:
        """Return whether the number of steps is known before the loop, from something else than a target."""
        rec = rec_layer(self.step.rec)
        return self.ending.end is None and (bool(rec.sources) or rec.axis is not None or self._unstacks)

    @property
    def outer(self) -> list[Node]:
        """Return the layers outside of the loop whose values a step reads."""
        found = [outer for outer, _ in self.slices]
        slices = {inner for _, inner in self.slices}
        for node in self.nodes:
            if node in slices:
                continue
            deps = ([node.sources[0]] if node in self.scored else []) if node in self.step.choices else node.deps
            found += [dep for dep in deps if dep not in self._inner]
        return list(dict.fromkeys(found))

    # --- states ---

    def _find_states(self) -> list[State]:
        states: list[State] = []
        for prev in self.step.loop.prevs:
            node, of = prev.node, prev.of
            if node in self.nodes:
                states.append(State(self._name(of, "output"), node, node.output, of, of in self._dependent))
        for node in self.nodes:
            if node not in self.step.choices:
                states += [self._hidden(node, key) for key in node.loop_states]
        return states

    def _hidden(self, node: Node, key: str) -> State:
        name = self._name(node, "extra/%s" % node.layer.state_name(key))
        return State(name, (node, key), node.loop_states[key][0], None, node in self._dependent)

    def _name(self, node: Node, part: str) -> str:
        kind = "state_delayed" if node in self._dependent else "state"
        return op_name("%s/%s/%s" % (kind, self.step.name_of(node), part))

    def _sources(self, states: Iterable[State]) -> list[Node]:
        """Return the layers that give the values of states."""
        found = [s.key[0] if s.of is None else s.of for s in states]
        return [node for node in dict.fromkeys(found) if node not in self.step.choices]

    def _end(self, *, delayed: bool) -> list[Node]:
        end = self.ending.end
        return [end] if end is not None and (end in self._dependent) == delayed else []

    def _kept_for_later(self) -> list[State]:
        """Return further states, for what the delayed ones read of layers that depend on no label.

        What depends on no state either is computed again.
        """
        by_key = {s.key: s for s in self.states}
        kept: dict[Any, State] = {}
        for node in self.closure(self.later):
            if node not in self._dependent or node in self.step.choices:
                continue
            for dep in self._now(node):
                if dep in self._dependent or self._starts_over(dep):
                    continue
                if dep in self._prevs:
                    for key in self._keys_before(dep):
                        if not by_key[key].delayed:
                            kept.setdefault(key, self._as_before(by_key[key]))
                else:
                    self._check_dims(node, dep)
                    kept.setdefault(dep, State(self._name(dep, "output"), dep, dep.output, dep))
        return list(kept.values())

    def _keys_before(self, prev: Node) -> list[Any]:
        """Return the states that ``prev:`` reads: the value of the layer, and its hidden state."""
        owner = self._prevs[prev].state_of
        return [prev, *((owner, key) for key in (() if owner is None else owner.loop_states))]

    def _as_before(self, state: State) -> State:
        name = "state_before" + state.name[len("state") :]
        return State(name, ("before", state.key), state.data, None, before=state.key)

    @functools.cached_property
    def _with_memory(self) -> set[Node]:
        """Return the layers that depend on a state, so that their value of the last step is gone."""
        found: set[Node] = set()
        for node in self.nodes:
            if node in self._prevs or node.loop_states or any(dep in found for dep in self._now(node)):
                found.add(node)
        return found

    def _starts_over(self, node: Node) -> bool:
        return node not in self._with_memory

    def known_later(self) -> list[Node]:
        """Return the layers whose values of the last step are states, for the delayed ones."""
        return [s.key for s in self.states if s.is_value]

    def _check_dims(self, node: Node, dep: Node) -> None:
        """Check that a value can be kept: the lengths of its axes are known outside of the step."""
        outside = {dim for outer in self.outer for dim in outer.output.dims}
        lost = [dim for dim in dep.output.dims if dim.is_dynamic() and dim not in outside]
        if lost:
            raise ExportError(
                "Single steps of layer %r: layer %r depends on the label of its step, and reads layer %r, whose axis "
                "%s is made in that step, so that it can't be kept until the label is known. Reduce that axis before."
                % (self.step.path, node.path, dep.path, lost[0])
            )

    def _check_names(self) -> None:
        known: dict[str, State] = {}
        for state in self.states:
            other = known.setdefault(state.name, state)
            if other is not state and other.of is not state.of:
                raise ExportError(
                    "Single steps of layer %r: two states would be called %r. Rename a layer."
                    % (self.step.path, state.name)
                )
