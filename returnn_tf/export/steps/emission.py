"""The ops of single steps: scores and states of a step, and the delayed states of the step before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional, cast

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.export.steps.base_values import BaseValues, batch_major_shape, from_batch_major
from returnn_tf.export.steps.parts import State, StepParts
from returnn_tf.export.steps.values import StepValues
from returnn_tf.graph.dim_lengths import DimLengths
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.hidden_state import recurrent_node
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering, LoweringOptions, ParamValues
from returnn_tf.layers.search.outer_search import scores_for_search
from returnn_tf.loops.carried import first_values
from returnn_tf.loops.hypotheses import after_step
from returnn_tf.loops.inputs import max_steps
from returnn_tf.loops.nodes import StepSliceLayer
from returnn_tf.loops.step import StepEmitter
from returnn_tf.ops.frames.shape import move_axis, transpose
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
    :param values: holds the values between steps
    :param ends: whether the steps themselves tell when to stop, if there is a limit; else the search outside knows
    """

    def __init__(
        self, parts: StepParts, params: dict[str, Any], global_step: Any, values: StepValues, *, ends: bool = True
    ) -> None:
        self._parts, self._step = parts, parts.step
        self._params, self._global_step = params, global_step
        self._values = values
        self._fixed_limit: Any = None
        loop = parts.step.loop
        #: Whether the number of steps is limited by something else than the lengths of a target.
        self._has_limit = ends and (
            loop.ending.max_steps is not None or loop.source_dim is not None or parts.steps_are_known
        )
        dims = [self._step.loop.loop_dim] if parts.steps_are_known else []
        self._base = BaseValues(parts.outer, dims, "Single steps of layer %r" % self._step.path)

    # --- the run of the encoder ---

    def needed_outside(self) -> list[Node]:
        """Return the layers outside of the loop that the run of the encoder computes."""
        keys = {state.key for state in self._parts.states}
        initial = [p.initial.node for p in self._step.loop.prevs if p.node in keys and p.initial.node is not None]
        lengths = self._step.loop.length_deps if self._has_limit else []
        return list(dict.fromkeys([*self._base.nodes, *initial, *lengths]))

    @property
    def lengths_name(self) -> Optional[str]:
        """Return the variable with the number of steps of each sequence, None where it is not known before."""
        return self._base.size_name(self._step.loop.loop_dim) if self._parts.steps_are_known else None

    @property
    def fixed_steps(self) -> Optional[int]:
        """Return the number of steps if it is the same for all inputs."""
        return self._step.loop.loop_dim.size if self._parts.steps_are_known else None

    def outer(self, batch: Any) -> Lowering:
        """Return a lowering for values from outside of the loop."""
        plan = self._step.plan
        options = LoweringOptions(train=False, search=plan.search, semantics=plan.semantics, with_losses=False)
        dims = DimLengths(batch_size=batch)
        return Lowering(options, ParamValues(self._params), step=self._global_step, dims=dims)

    def begin(self, outer: Lowering) -> None:
        """Make all values, as the run of the encoder sets them.

        :param outer: has the values of `needed_outside`
        """
        parts, make = self._parts, self._values.make
        ctx = EmitContext(self._step.run, outer)
        self._base.make(self._values, outer)
        limit = self._limit(ctx) if self._has_limit else None
        self._fixed_limit = None if limit is None else tf.get_static_value(limit)
        if limit is not None and self._fixed_limit is None and self.lengths_name is None:
            make(LIMIT, (), "int32", limit)
        make(INDEX, (), "int32", tf.constant(0))
        make(GOES_ON, (), "bool", tf.constant(True) if limit is None else limit > 0)
        batch = outer.dims.batch_size
        if parts.ending.end is not None:
            make(ENDED, (None,), "bool", tf.fill([batch], False), has_batch=True)
            make(LENS, (None,), "int32", tf.zeros([batch], tf.int32), has_batch=True)
        keys = [s.key for s in parts.states if isinstance(s.key, tuple) and isinstance(s.key[0], Node)]
        prevs = [prev for prev in self._step.loop.prevs if any(s.key is prev.node for s in parts.states)]
        first = first_values(prevs, keys, ctx)
        for state in parts.states:
            if state.name not in self._values:
                shape = batch_major_shape(state.data)
                has_batch = state.data.batch_axis is not None
                make(state.name, shape, state.data.dtype, self._first(state, first, ctx), has_batch=has_batch)
        for node in self._step.choices:
            name = self._step.name_of(node)
            if node in parts.scored:
                labels = node.sources[0].output.dim
                scores = tf.zeros([batch, labels or 0], ctx.float_dtype)
                make(scores_name(name), (None, labels), ctx.float_dtype, scores)
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
                return tf.shape(self._values.value(state.name))[0]
        return tf.shape(self._values.value(label_name(self._step.name_of(self._step.choices[0]))))[0]

    def _begin(self, index: Any, inputs: dict[Any, Any]) -> StepEmitter:
        entries = self._entries()
        outer = self.outer(entries)
        self._base.enter(outer, self._values, entries)
        for node, inner in self._parts.slices:
            data = node.output
            axis = data.axes_of(cast(StepSliceLayer, inner.layer).loop_dim)[0]
            frames = move_axis(outer.values.outputs[node], data.rank, axis, 0)
            inputs[inner] = tf.gather(frames, tf.minimum(index, tf.shape(frames)[0] - 1))
        step = StepEmitter(self._step.loop, outer, index, inputs)
        if self.lengths_name is not None:
            step.lowering.loop.lens = self._base.lens(self.lengths_name, self._values, entries)
        if ENDED in self._values:
            step.lowering.loop.ended = self._values.value(ENDED)
        return step

    def _read(self, state: State) -> Any:
        return from_batch_major(self._values.value(state.name), state.data)

    def _label(self, node: Node) -> Any:
        value = self._values.value(label_name(self._step.name_of(node)))
        return tf.cast(value, node.output.dtype)

    def _emit(self, step: StepEmitter, nodes: Iterable[Node]) -> None:
        """Emit layers of a step, with the labels that the search outside has decided on."""
        nodes = list(nodes)
        step.give({node: self._label(node) for node in nodes if node in self._step.choices})
        step.emit(nodes)

    def emit_step(self) -> tuple[dict[Node, Any], dict[str, Any]]:
        """Emit a step.

        :return: the scores of each choice [batch, labels], and the new values by name
        """
        parts = self._parts
        step = self._emit_now(node.sources[0] for node in parts.scored)
        scores = {node: scores_for_search(EmitContext(node, step.lowering)) for node in parts.scored}
        values = self._new_states(step)
        if parts.ending.end is not None and parts.ending.end in parts.now:
            values.update(self._ended(step))
        return scores, values

    def emit_layers(self, nodes: Iterable[Node]) -> tuple[dict[Node, Any], dict[str, Any]]:
        """Emit a step up to some layers.

        :return: the values of these layers, and the new states by name
        """
        nodes = list(nodes)
        step = self._emit_now(nodes)
        return {node: step.value(node) for node in nodes}, self._new_states(step)

    def _emit_now(self, nodes: Iterable[Node]) -> StepEmitter:
        """Emit some layers of a step, and what gives the states that are not delayed."""
        parts = self._parts
        inputs = {s.key: self._read(s) for s in parts.states if s.before is None and not s.is_value}
        step = self._begin(self._values.value(INDEX), inputs)
        self._emit(step, parts.closure([*nodes, *parts.now]))
        return step

    def _new_states(self, step: StepEmitter) -> dict[str, Any]:
        return {s.name: self._new(step, s) for s in self._parts.states if not s.delayed}

    def emit_scores(self, values: Mapping[Node, Any], nodes: Iterable[Node], batch: Any) -> Any:
        """Emit the layers of a step between some values and the scores, which need nothing else.

        :param values: of layers of the step
        :param nodes: in the order of their computation
        :param batch: number of entries
        """
        step = StepEmitter(self._step.loop, self.outer(batch), tf.constant(0), {})
        step.give(values)
        self._emit(step, nodes)
        return scores_for_search(EmitContext(self._parts.scored[0], step.lowering))

    def emit_later(self) -> dict[str, Any]:
        """Emit the delayed states of the step before.

        :return: the new values by name
        """
        parts = self._parts
        known = parts.known_later()
        inputs = {s.key: self._read(s) for s in parts.states if s.delayed}
        inputs.update({s.before: self._read(s) for s in parts.states if s.before is not None})
        step = self._begin(self._values.value(INDEX) - 1, inputs)
        for kept in parts.states:
            if kept.is_value:
                step.give({kept.key: self._read(kept)})
                self._set_hidden(step, kept.key)
        labels = [node for node in self._step.choices if any(s.of is node for s in parts.states)]
        self._emit(step, [*labels, *parts.closure(parts.later, stop=known)])
        values = {s.name: self._new(step, s) for s in parts.states if s.delayed}
        if parts.ending.end is not None and parts.ending.end in parts.later:
            values.update(self._ended(step))
        return values

    def _set_hidden(self, step: StepEmitter, node: Node) -> None:
        """Set the hidden state after the step of a layer whose value is known."""
        owner = recurrent_node(node)
        for kept in self._parts.states:
            if not kept.delayed and isinstance(kept.key, tuple) and kept.key[0] is owner:
                step.lowering.loop.next_states[kept.key] = self._read(kept)

    def _new(self, step: StepEmitter, kept: State) -> Any:
        """Return the new value of a state, batch-major."""
        if kept.before is not None:
            other = next(s for s in self._parts.states if s.key == kept.before)
            return self._values.value(other.name)
        value = step.value(kept.key) if kept.is_value else step.carried(kept.key)
        return transpose(value, batch_major_order(kept.data))

    def _ended(self, step: StepEmitter) -> dict[str, Any]:
        ending, value = self._parts.ending, self._values.value
        assert ending.end is not None
        ended, lens = after_step(value(ENDED), value(LENS), step.value(ending.end), ending.include_eos)
        return {ENDED: ended, LENS: lens}

    def goes_on(self, values: dict[str, Any]) -> Any:
        """Return whether a step is to follow, bool scalar, given new values of variables by name."""
        more: Any = tf.constant(True)
        if self._has_limit:
            if self._fixed_limit is not None:
                limit: Any = int(self._fixed_limit)
            elif self.lengths_name is not None:
                limit = tf.reduce_max(self._values.value(self.lengths_name))
            else:
                limit = self._values.value(LIMIT)
            more = self._values.value(INDEX) < limit
        if ENDED in self._values:
            ended = values[ENDED] if ENDED in values else self._values.value(ENDED)
            more = tf.logical_and(more, tf.logical_not(tf.reduce_all(ended)))
        return more
