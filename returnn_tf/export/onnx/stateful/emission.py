"""The steps of a loop as functions of tensors: the first step, the step after a label, and the scores of a state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import ExportError
from returnn_tf.config.user_code import using_config
from returnn_tf.export.onnx.stateful.packing import Packing
from returnn_tf.export.steps.base_values import batch_major_shape
from returnn_tf.export.steps.emission import ENDED, INDEX, StepEmission, label_name
from returnn_tf.export.steps.loops import StepLoop
from returnn_tf.export.steps.parts import State, StepParts
from returnn_tf.export.steps.values import PassedValues
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.util.lazy_tf import tf

#: The state that holds scores where all of the step is needed for the next one.
SCORES = "scores"


class StepFunctions:
    """The functions; their states are dicts by name of tensors [batch, ...].

    :param plan: made by `plan_for_steps`
    :param params: parameter name -> variable
    :param layer: path of the loop
    :param split: whether layers that only the scores need are left to `scores`; else states hold the scores
    :param where: how errors begin
    :raises ConfigError: the loop can't be computed step by step, or its labels are not one per step
    """

    def __init__(
        self, plan: Plan, config: Config, params: dict[str, Any], layer: str, *, where: str, split: bool = True
    ) -> None:
        self._config = config
        self._params, self._where = params, where
        self.parts = StepParts(StepLoop(plan, layer))
        choices = self.parts.step.choices
        if len(choices) != 1:
            raise ExportError(
                "%s: the loop has %d choices, %s, but there has to be one."
                % (self._where, len(choices), ", ".join(repr(node.path) for node in choices))
            )
        self.choice = choices[0]
        #: The layers outside of the loop that a step reads.
        self.packing = Packing(self._emission(PassedValues()).needed_outside(), self._where)
        last = self._only_for_scores() if split else []
        self._last = last
        self._hidden = [] if not last else self._sources_of(last)

    def _emission(self, values: PassedValues) -> StepEmission:
        """Return the steps without an end: the search outside knows when to stop."""
        return StepEmission(self.parts, self._params, tf.constant(0, tf.int64), values, ends=False)

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        with using_config(self._config):
            yield

    @property
    def labels(self) -> int:
        """Return the number of labels."""
        return self.choice.sources[0].output.dim or 0

    # --- which layers belong to the scorer ---

    def _only_for_scores(self) -> list[Node]:
        """Return the layers that nothing but the scores needs, and that read fixed-size values of the step only."""
        parts, source = self.parts, self.choice.sources[0]
        order = parts.closure([source])
        kept = set(parts.closure(parts.now)) | {state.of for state in parts.states}
        readers: dict[Node, list[Node]] = {node: [] for node in order}
        for node in order:
            for dep in node.deps:
                if dep in readers:
                    readers[dep].append(node)
        chosen: set[Node] = set()
        for node in reversed(order):
            inside = bool(node.deps) and all(dep in readers for dep in node.deps)
            fixed = all(_has_fixed_size(dep) for dep in node.deps)
            fits = inside and fixed and node not in kept and not node.loop_states
            if fits and (node is source or readers[node]) and all(reader in chosen for reader in readers[node]):
                chosen.add(node)
        return [node for node in order if node in chosen]

    def _sources_of(self, nodes: list[Node]) -> list[Node]:
        return list(dict.fromkeys(dep for node in nodes for dep in node.deps if dep not in nodes))

    def _hidden_name(self, node: Node) -> str:
        """Return the state that holds the value of a layer: that of a ``prev:`` if there is one."""
        for state in self.parts.states:
            if state.of is node and not state.delayed and state.before is None:
                return state.name
        return "hidden/%s" % self.parts.step.name_of(node)

    @property
    def specs(self) -> dict[str, Any]:
        """Return the `tf.TensorSpec` of each state, [batch, ...]."""
        found = {}
        for state in self.parts.states:
            shape = batch_major_shape(state.data)
            found[state.name] = tf.TensorSpec(
                shape if state.data.batch_axis is not None else [None, *shape], state.data.dtype
            )
        found[INDEX] = tf.TensorSpec([None], tf.int32)
        for node in self._hidden:
            found[self._hidden_name(node)] = tf.TensorSpec([None, *node.output.static_shape[1:]], node.output.dtype)
        if not self._last:
            found[SCORES] = tf.TensorSpec([None, self.labels], tf.float32)
        return found

    # --- the functions ---

    def encode(self, graph: Lowering) -> tuple[Any, Any]:
        """Return ``encoder-states`` and their lengths, from the values of the layers of `packing`."""
        return self.packing.pack(graph)

    def initial(self, packed: Optional[Any], lens: Optional[Any]) -> dict[str, Any]:
        """Return the states of the first step, in which no label is known."""
        with self._settings():
            values = PassedValues()
            return self._finish(self._begun(values, packed, lens), values, {})

    def after(
        self, label: Any, states: Mapping[str, Any], packed: Optional[Any], lens: Optional[Any]
    ) -> dict[str, Any]:
        """Return the states of the next step.

        :param label: int32 [batch] chosen in the last one
        :param states: of the last step, [batch, ...]; batch is a multiple of that of ``packed``
        """
        with self._settings():
            return self._after(label, states, packed, lens)

    def _after(self, label: Any, states: Mapping[str, Any], packed: Any, lens: Any) -> dict[str, Any]:
        values = PassedValues()
        steps = self._begun(values, packed, lens)
        entries = tf.shape(label)[0]
        given = {s.name: self._unbatched(s, states[s.name]) for s in self.parts.states}
        values.set({**given, INDEX: states[INDEX][0], label_name(self.parts.step.name_of(self.choice)): label})
        if ENDED in values:
            values.set({ENDED: tf.fill([entries], False)})
        later = steps.emit_later()
        later = {s.name: later[s.name] for s in self.parts.states if s.delayed}
        values.set(later)
        return self._finish(steps, values, later, entries)

    def _unbatched(self, state: State, value: Any) -> Any:
        return value if state.data.batch_axis is not None else value[0]

    def _begun(self, values: PassedValues, packed: Optional[Any], lens: Optional[Any]) -> StepEmission:
        steps = self._emission(values)
        outer = steps.outer(tf.constant(1) if packed is None else tf.shape(packed)[0])
        if packed is not None:
            self.packing.unpack(outer, packed, lens)
        steps.begin(outer)
        return steps

    def _finish(
        self, steps: StepEmission, values: PassedValues, later: Mapping[str, Any], entries: Any = None
    ) -> dict[str, Any]:
        """Emit the step, and return all states."""
        parts = self.parts
        if self._last:
            hidden, new = steps.emit_layers(self._hidden)
            more = {self._hidden_name(node): value for node, value in hidden.items()}
        else:
            scores, new = steps.emit_step()
            more = {SCORES: scores[self.choice]}
        batched = {s.name for s in parts.states if s.data.batch_axis is not None}
        batch = values.value(label_name(parts.step.name_of(self.choice)))
        entries = tf.shape(batch)[0] if entries is None else entries
        result = {}
        for state in parts.states:
            value = new[state.name] if state.name in new else later.get(state.name, values.value(state.name))
            result[state.name] = value if state.name in batched else _for_each(value, entries)
        result[INDEX] = _for_each(values.value(INDEX) + 1, entries)
        return {**result, **more}

    def scores(self, states: Mapping[str, Any]) -> Any:
        """Return the log probabilities of the labels [batch, labels], given states of `initial` or `after`."""
        if not self._last:
            return states[SCORES]
        values = {node: states[self._hidden_name(node)] for node in self._hidden}
        batch = tf.shape(next(iter(values.values())))[0]
        with self._settings():
            return self._emission(PassedValues()).emit_scores(values, self._last, batch)


def _has_fixed_size(node: Node) -> bool:
    """Return whether all axes of a value but the first one, batch, have a fixed size."""
    data = node.output
    return data.batch_axis == 0 and all(dim.size is not None for dim in data.dims[1:]) and data.dtype == "float32"


def _for_each(value: Any, entries: Any) -> Any:
    """Return a value once per entry of the batch."""
    return tf.tile(tf.expand_dims(value, 0), tf.concat([[entries], tf.ones([value.shape.rank], tf.int32)], axis=0))
