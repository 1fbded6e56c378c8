"""The ops of single steps: scores and states of a step, and the delayed states of the step before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.export.steps.base_values import BaseValues, batch_major_shape, from_batch_major
from returnn_tf.export.steps.parts import State, StepParts
from returnn_tf.export.steps.variables import StepVariables
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.hidden_state import recurrent_node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import Node
from returnn_tf.layers.search.outer_search import scores_for_search
from returnn_tf.loops.hypotheses import after_step
from returnn_tf.loops.inputs import begin_step, check_step, initial_states, max_steps
from returnn_tf.ops.frames.shape import move_axis, transpose
from returnn_tf.tensor.precision import float_dtype
from returnn_tf.util.lazy_tf import tf

INDEX, GOES_ON, ENDED, LENS, LIMIT = "i", "cond", "end_flag", "dyn_seq_len", "base_max_steps"


def scores_name(choice: str) -> str:
    """Return the name of the variable with the scores of a choice."""
    return "stochastic_var_scores_" + choice


def label_name(choice: str) -> str:
    """Return the name of the variable with the label of a choice."""
    return "stochastic_var_choice_" + choice


class StepEmission:
    """The ops of single steps, made in the current graph.

    :param parts: what a step consists of
    :param params: parameter name -> variable
    :param global_step: int64 scalar
    :param variables: holds the values between steps; default: variables of the graph
    """

    def __init__(self, parts: StepParts, params: dict[str, Any], global_step: Any, variables: Any = None) -> None:
        self._parts, self._step = parts, parts.step
        self._params, self._global_step = params, global_step
        self.variables: Any = StepVariables() if variables is None else variables
        self._fixed_limit: Any = None
        dims = [self._step.loop.loop_dim] if parts.steps_are_known else []
        self._base = BaseValues(parts.outer, dims, "Single steps of layer %r" % self._step.path)

    # --- the run of the encoder ---

    def needed_outside(self) -> list[Node]:
        """Return the layers outside of the loop that the run of the encoder computes."""
        keys = {state.key for state in self._parts.states}
        initial = [i.node for prev, _, i in self._step.loop.prevs if prev in keys and i.node is not None]
        lengths = self._step.loop.length_deps if self._has_limit else []
        return list(dict.fromkeys([*self._base.nodes, *initial, *lengths]))

    @property
    def _has_limit(self) -> bool:
        """Return whether the number of steps is limited by something else than the lengths of a target."""
        loop = self._step.loop
        return loop.ending.max_steps is not None or loop.source_dim is not None or self._parts.steps_are_known

    @property
    def lengths_name(self) -> Optional[str]:
        """Return the variable with the number of steps of each sequence, None where it is not known before."""
        return self._base.size_name(self._step.loop.loop_dim) if self._parts.steps_are_known else None

    @property
    def fixed_steps(self) -> Optional[int]:
        """Return the number of steps if it is the same for all inputs."""
        return self._step.loop.loop_dim.size if self._parts.steps_are_known else None

    def make_variables(self, outer: Lowering) -> None:
        """Make all variables, with what the run of the encoder sets.

        :param outer: has the values of `needed_outside`
        """
        parts, make = self._parts, self.variables.make
        ctx = EmitContext(self._step.run, outer)
        self._base.make(self.variables, outer)
        limit = self._limit(ctx) if self._has_limit else None
        self._fixed_limit = None if limit is None else tf.get_static_value(limit)
        if limit is not None and self._fixed_limit is None and self.lengths_name is None:
            make(LIMIT, (), "int32", limit)
        make(INDEX, (), "int32", tf.constant(0))
        make(GOES_ON, (), "bool", tf.constant(True) if limit is None else limit > 0)
        batch = outer.batch_size
        if parts.ending.end is not None:
            make(ENDED, (None,), "bool", tf.fill([batch], False), has_batch=True)
            make(LENS, (None,), "int32", tf.zeros([batch], tf.int32), has_batch=True)
        keys = [s.key for s in parts.states if isinstance(s.key, tuple) and isinstance(s.key[0], Node)]
        prevs = [entry for entry in self._step.loop.prevs if any(s.key is entry[0] for s in parts.states)]
        first = initial_states(prevs, ctx, keys)
        for state in parts.states:
            if state.name not in self.variables:
                shape = batch_major_shape(state.data)
                has_batch = state.data.batch_axis is not None
                make(state.name, shape, state.data.dtype, self._first(state, first, ctx), has_batch=has_batch)
        for node in self._step.choices:
            name = self._step.name_of(node)
            if node in parts.scored:
                labels = node.sources[0].output.dim
                make(scores_name(name), (None, labels), float_dtype(), tf.zeros([batch, labels or 0], float_dtype()))
            make(label_name(name), (None,), "int32", tf.zeros([batch], tf.int32))

    def _limit(self, ctx: EmitContext) -> Any:
        """Return the maximum number of steps, int32 scalar; a loop can't run past the end of its source."""
        loop = self._step.loop
        limit = tf.cast(max_steps(loop, ctx), tf.int32)
        return limit if loop.source_dim is None else tf.minimum(limit, ctx.size(loop.source_dim))

    def _first(self, state: State, first: dict[Any, Any], ctx: EmitContext) -> Any:
        """Return the value before the first step; of what is only read after it, zeros."""
        key = state.before if state.before is not None else state.key
        data = state.data
        if key in first:
            return transpose(first[key], batch_major_order(data))
        sizes = [ctx.size(data.dims[axis]) for axis in batch_major_order(data)]
        if data.dtype == "string":
            return tf.fill(sizes, "")
        return tf.zeros(tf.stack(sizes) if sizes else [], data.dtype)

    # --- a step ---

    def _entries(self) -> Any:
        """Return the number of entries in the batch of the step."""
        for state in self._parts.states:
            if state.data.batch_axis is not None:
                return tf.shape(self.variables.value(state.name))[0]
        return tf.shape(self.variables.value(label_name(self._step.name_of(self._step.choices[0]))))[0]

    def _begin(self, index: Any, inputs: dict[Any, Any]) -> Lowering:
        plan, entries = self._step.plan, self._entries()
        outer = Lowering(self._params, False, plan.search, plan.behavior_version, step=self._global_step)
        outer.batch_size = entries
        outer.with_losses = False
        self._base.enter(outer, self.variables, entries)
        for node, inner in self._parts.slices:
            data = node.output
            frames = move_axis(outer.values[node], data.rank, data.axes_of(self._loop_dim(inner))[0], 0)
            inputs[inner] = tf.gather(frames, tf.minimum(index, tf.shape(frames)[0] - 1))
        state = begin_step(self._step.loop, outer, index, inputs)
        if ENDED in self.variables:
            state.ended = self.variables.value(ENDED)
        return state

    def _loop_dim(self, inner: Node) -> Any:
        layer: Any = inner.layer  # a StepSliceLayer
        return layer.loop_dim

    def _read(self, state: State) -> Any:
        return from_batch_major(self.variables.value(state.name), state.data)

    def _label(self, node: Node) -> Any:
        value = self.variables.value(label_name(self._step.name_of(node)))
        return tf.cast(value, node.output.dtype)

    def _emit(self, state: Lowering, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node in self._step.choices:
                state.values[node] = self._label(node)
            elif node not in state.values:
                emit_node(state, node)
        check_step(state)

    def emit_step(self) -> tuple[dict[Node, Any], dict[str, Any]]:
        """Emit a step.

        :return: the scores of each choice [batch, labels], and the new values of variables by name
        """
        parts = self._parts
        inputs = {s.key: self._read(s) for s in parts.states if s.before is None and not s.is_value}
        state = self._begin(self.variables.value(INDEX), inputs)
        roots = [*(node.sources[0] for node in parts.scored), *parts.now]
        self._emit(state, parts.closure(roots))
        scores = {node: scores_for_search(EmitContext(node, state)) for node in parts.scored}
        values = {s.name: self._new(state, s) for s in parts.states if not s.delayed}
        if parts.ending.end is not None and parts.ending.end in parts.now:
            values.update(self._ended(state))
        return scores, values

    def emit_later(self) -> dict[str, Any]:
        """Emit the delayed states of the step before.

        :return: the new values of variables by name
        """
        parts = self._parts
        known = parts.known_later()
        inputs = {s.key: self._read(s) for s in parts.states if s.delayed}
        inputs.update({s.before: self._read(s) for s in parts.states if s.before is not None})
        state = self._begin(self.variables.value(INDEX) - 1, inputs)
        for kept in parts.states:
            if kept.is_value:
                state.values[kept.key] = self._read(kept)
                self._set_hidden(state, kept.key)
        labels = [node for node in self._step.choices if any(s.of is node for s in parts.states)]
        self._emit(state, [*labels, *parts.closure(parts.later, stop=known)])
        values = {s.name: self._new(state, s) for s in parts.states if s.delayed}
        if parts.ending.end is not None and parts.ending.end in parts.later:
            values.update(self._ended(state))
        return values

    def _set_hidden(self, state: Lowering, node: Node) -> None:
        """Set the hidden state after the step of a layer whose value is known."""
        owner = recurrent_node(node)
        for kept in self._parts.states:
            if not kept.delayed and isinstance(kept.key, tuple) and kept.key[0] is owner:
                state.next_states[kept.key] = self._read(kept)

    def _new(self, state: Lowering, kept: State) -> Any:
        """Return the new value of a variable."""
        if kept.before is not None:
            other = next(s for s in self._parts.states if s.key == kept.before)
            return self.variables.value(other.name)
        if kept.of is None:
            value = state.next_states[kept.key]
        else:
            value = state.values[kept.of]
        return transpose(value, batch_major_order(kept.data))

    def _ended(self, state: Lowering) -> dict[str, Any]:
        ending, value = self._parts.ending, self.variables.value
        assert ending.end is not None
        ended, lens = after_step(value(ENDED), value(LENS), state.values[ending.end], ending.include_eos)
        return {ENDED: ended, LENS: lens}

    def goes_on(self, values: dict[str, Any]) -> Any:
        """Return whether a step is to follow, bool scalar.

        :param values: new values of variables by name
        """
        more: Any = tf.constant(True)
        if self._has_limit:
            if self._fixed_limit is not None:
                limit: Any = int(self._fixed_limit)
            elif self.lengths_name is not None:
                limit = tf.reduce_max(self.variables.value(self.lengths_name))
            else:
                limit = self.variables.value(LIMIT)
            more = self.variables.value(INDEX) < limit
        if ENDED in self.variables:
            ended = values[ENDED] if ENDED in values else self.variables.value(ENDED)
            more = tf.logical_and(more, tf.logical_not(tf.reduce_all(ended)))
        return more
