"""Runs the layers of a step in a loop: `tf.while_loop` with carried values, slices of what is known, and results."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

from returnn_tf.graph.constraints import constrained_values, step_output_name
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import Node
from returnn_tf.layers.loops.hypotheses import Hypotheses, follow_choice, normalized, steps_taken
from returnn_tf.layers.loops.loop_inputs import in_beam, read_params, shaped, step_array
from returnn_tf.layers.loops.loop_nodes import InitialOutput
from returnn_tf.layers.loops.recompute import recomputed
from returnn_tf.layers.rec.cell_step import ALL_STEPS, STEP_INPUT
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.ops.sequence.beam import along_hypotheses, read_backwards
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Ending:
    """When a loop without a source ends.

    :param end: node of the step with a bool per sequence, or None: the number of steps is known
    :param include_eos: whether the step in which ``end`` gets true counts
    :param max_steps: function of the `EmitContext` which gives the largest number of steps, or None
    :param time_dim: the dim which the loop brings, or None
    """

    end: Optional[Node]
    include_eos: bool
    max_steps: Any
    time_dim: Optional[Dim]


class LoopRunLayer(Layer):
    """The loop of a step network.

    :param loop_dim: the axis of the steps
    :param path: of the `rec` layer
    """

    class_name = "loop"
    is_connector = True

    def __init__(self, loop_dim: Dim, path: str, ending: Ending) -> None:
        super().__init__()
        self.loop_dim = loop_dim
        self.path = path
        self.ending = ending
        #: (node for ``prev:x`` in the step, node of x, its initial output)
        self.prevs: List[Tuple[Node, Node, InitialOutput]] = []
        #: (value for all steps, node for its slice in the step)
        self.slices: List[Tuple[Node, Node]] = []
        #: nodes of the step whose values of all steps are wanted
        self.collected: List[Node] = []
        #: (layer of the step, option): what this option constrains is wanted for all steps too
        self.constrained: List[Tuple[Node, str]] = []
        #: layer of the step network -> (where it is computed, why it is in the loop); for people
        self.zones: Dict[str, Tuple[str, str]] = {}
        #: whether the backward pass computes the steps again, and whether it goes through the loop
        self.checkpoint_steps, self.swap_memory, self.back_prop = False, False, True
        #: the choices in the order of a step; empty without search
        self.choices: List[Node] = []

    @property
    def beam_size(self) -> int:
        """Hypotheses at the end of a step; 1 without search."""
        return self.choices[-1].layer.beam_size if self.choices else 1  # type: ignore[attr-defined]

    @property
    def _written(self) -> List[Node]:
        """The nodes whose values a step writes, in this order."""
        return self.collected + [node for node, _ in self.constrained]

    @property
    def independent_of_batch(self) -> bool:
        """Whether each sequence is searched as if it were alone."""
        return bool(self.choices) and self.choices[-1].layer.independent_of_batch  # type: ignore[attr-defined]

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass computes the steps again.

        The loops of TensorFlow 2 cannot swap to the memory of the host; this saves that of a GPU as well.
        """
        return self.checkpoint_steps or (self.swap_memory and bool(tf.config.list_physical_devices("GPU")))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the number of steps; the collected values are further outputs by path."""
        ending, beam = self.ending, self.beam_size
        limit = ctx.size(self.loop_dim) if ending.max_steps is None else ending.max_steps(ctx)
        # In search, whatever enters the loop does so once per hypothesis.
        stays = all(n.layer.beam_size == beam for n in self.choices)  # type: ignore[attr-defined]
        self._outside = in_beam(ctx.lowering, self.node.deps, beam, stays=stays)
        inner_ctx = type(ctx)(ctx.node, self._outside)
        arrays = [self._unstacked(inner_ctx, outer, inner, limit) for outer, inner in self.slices]
        read_params(inner_ctx, self.node.inner)
        if stays:  # else what is made once per hypothesis would not fit in all of the step
            arrays += self._before_loop(inner_ctx, limit)
        batch = ctx.lowering.batch_size
        search = self._initial_search(inner_ctx, batch)
        if search and ending.end is None:
            #: [batch * beam], where the number of steps is known
            self._known_lens = tf.broadcast_to(self._outside.get_lens(self.loop_dim), [batch * beam])
        states = self._initial_states(inner_ctx)
        results = [self._result_array(node, limit) for node in self._written]
        sources = [tf.TensorArray(tf.int32, size=limit, element_shape=[None, beam])] if self.choices else []
        shapes = [state.shape for state in states]

        def go_on(i: Any, _states: Any, search: Any, *_: Any) -> Any:
            more = i < limit
            return tf.logical_and(more, tf.logical_not(tf.reduce_all(search["ended"]))) if ending.end else more

        def body(i: Any, carried: Any, search: Any, collected: Any, sources: Any) -> Any:
            values, new_states, search, source = self._run_step(inner_ctx, i, arrays, carried, search, batch)
            for state, shape in zip(new_states, shapes):
                state.set_shape(shape)
            written = [array.write(i, value) for array, value in zip(collected, values)]
            return i + 1, new_states, search, written, [array.write(i, source) for array in sources]

        count, _, search, results, sources = tf.while_loop(
            go_on, body, (tf.constant(0), states, search, results, sources), maximum_iterations=limit
        )
        self._finish(ctx, count, search, results, sources)
        return count

    # --- before the loop ---

    def _before_loop(self, ctx: EmitContext, steps: Any) -> List[Any]:
        """What all steps share: masks, and what layers make.

        :return: arrays of what layers made for each step
        """
        arrays = []
        for node in self.node.inner:
            node.layer.before_loop(type(ctx)(node, ctx.lowering))
            made = ctx.aux(node, STEP_INPUT)
            if made is not None:
                arrays.append(step_array(made, steps))
        for outer in self.node.deps:
            for dim in outer.output.dims:
                if dim.is_dynamic and not dim.is_batch and dim is not self.loop_dim and ctx.has_lens(dim):
                    ctx.seq_mask(dim)
        return arrays

    def _unstacked(self, ctx: EmitContext, outer: Node, inner: Node, steps: Any) -> Any:
        data = outer.output
        x = move_axis(ctx.value(outer), data.rank, data.axes_of(self.loop_dim)[0], 0)
        ctx.set_aux(inner, ALL_STEPS, x)
        return step_array(x, steps)

    def _initial_states(self, ctx: EmitContext) -> List[Any]:
        states = []
        for prev, _, initial in self.prevs:
            states.append(shaped(initial.emit(ctx, prev.output), prev.output))
        for node in self.node.inner:
            for data, initial in node.loop_states.values():
                states.append(shaped(initial(type(ctx)(node, ctx.lowering)), data))
        return states

    def _initial_search(self, ctx: EmitContext, batch: Any) -> Dict[str, Any]:
        if self.ending.end is None and not self.choices:
            return {}
        entries = batch * self.beam_size
        search = {"ended": tf.fill([entries], False), "lens": tf.zeros([entries], tf.int32)}
        if self.choices:
            search["scores"] = tf.zeros([batch, self.beam_size])
        for value in search.values():
            value.set_shape([None, *value.shape[1:]])
        if self.choices:
            search["scores"].set_shape([None, self.beam_size])
        return search

    def _result_array(self, node: Node, steps: Any) -> Any:
        return tf.TensorArray(node.output.dtype, size=steps, element_shape=node.output.static_shape)

    # --- one step ---

    def _run_step(
        self, ctx: EmitContext, i: Any, arrays: List[Any], carried: Any, search: Dict[str, Any], batch: Any
    ) -> Tuple[List[Any], List[Any], Dict[str, Any], Any]:
        """`_step`, as an island whose gradient computes it again if that is wanted."""

        def inputs() -> List[Any]:
            return [i, *(array.read(i) for array in arrays), *tf.nest.flatten([list(carried), search])]

        def step(i: Any, *flat: Any) -> List[Any]:
            states, flags = tf.nest.pack_sequence_as([list(carried), search], flat[len(arrays) :])
            return tf.nest.flatten(self._step(ctx, i, flat[: len(arrays)], states, flags, batch)[:3])

        if self.choices or not ctx.train or not self.recomputes:
            return self._step(ctx, i, [array.read(i) for array in arrays], carried, search, batch)
        flat = recomputed(step, inputs(), inputs)
        values, states, ended = tf.nest.pack_sequence_as([self._written, list(carried), search], flat)
        return values, states, ended, None

    def _step(
        self, ctx: EmitContext, i: Any, given: Sequence[Any], carried: Any, search: Dict[str, Any], batch: Any
    ) -> Tuple[List[Any], List[Any], Dict[str, Any], Any]:
        """(collected values, states for the next step, hypotheses, [batch, beam] entries that these continue).

        :param given: what is known for this step: the slices, then what layers made before the loop
        """
        state = ctx.lowering.child()
        state.loop_index = state.loop_indices[self.loop_dim] = i
        made = [(node, STEP_INPUT) for node in self.node.inner if ctx.aux(node, STEP_INPUT) is not None]
        for target, value in zip([*(inner for _, inner in self.slices), *made], given):
            state.loop_inputs[target] = value
        keys: List[Any] = [(node, key) for node in self.node.inner for key in node.loop_states]
        for name, value in zip([prev for prev, _, _ in self.prevs] + keys, carried):
            state.loop_inputs[name] = value
        hyps = self._hypotheses(i, search, batch)
        state.hypotheses = hyps if self.choices else None
        state.ended = None if hyps is None else hyps.ended
        for position, node in enumerate(self.node.inner):
            emit_node(state, node)
            if hyps is not None and hyps.chosen is not None:
                follow_choice(state, node, self._needed_after(position, hyps), keys, batch)
        if state.updates:
            raise ValueError("a layer in the loop updates variables in each step, which is not supported")
        new_states = [state.values[of] for _, of, _ in self.prevs] + [state.next_states[name] for name in keys]
        source = None if hyps is None else hyps.source
        values = [state.values[node] for node in self.collected]
        values += [constrained_values(type(ctx)(node, state))[name] for node, name in self.constrained]
        return values, new_states, self._ended(state, hyps, search), source

    def _hypotheses(self, i: Any, search: Dict[str, Any], batch: Any) -> Optional[Hypotheses]:
        if not search:
            return None
        beam = self.beam_size
        scores = search.get("scores")
        ended = search["ended"]
        counts = steps_taken(ended, search["lens"], i, self.ending.include_eos)
        if self.ending.end is None and self.loop_dim.is_dynamic:
            lens = self._known_lens
            ended = i >= (lens if self.ending.include_eos or self.independent_of_batch else lens + 1)
            counts = tf.minimum(i, lens)
        source = tf.tile(tf.range(beam)[None], [batch, 1])
        return Hypotheses(i, scores, ended, beam, source, counts=counts)

    def _needed_after(self, position: int, hyps: Hypotheses) -> List[Node]:
        """Nodes of the step, and what is given to it, that are used after a choice; all, if the beam changes its
        size. In an order which is the same in each run, as the ops are made in it."""
        nodes = self.node.inner
        later = [of for _, of, _ in self.prevs] + self.collected
        if self.ending.end is not None:
            later.append(self.ending.end)
        for node in nodes[position + 1 :]:
            later += [node, *node.deps]
        assert hyps.scores is not None
        if hyps.scores.shape[1] != hyps.beam:
            return list(dict.fromkeys(later + self.node.deps))
        same = {*self.node.deps, *(inner for _, inner in self.slices if inner not in nodes[: position + 1])}
        return [node for node in dict.fromkeys(later) if node not in same]

    def _ended(self, state: Lowering, hyps: Optional[Hypotheses], search: Dict[str, Any]) -> Dict[str, Any]:
        if hyps is None:
            return search
        lens = search["lens"]
        if self.choices:
            index = hyps.source + tf.expand_dims(tf.range(tf.shape(hyps.source)[0]), 1) * self.beam_size
            lens = tf.gather(lens, tf.reshape(index, [-1]))
        before, ended = hyps.ended, hyps.ended
        if self.ending.end is not None:
            ended = tf.logical_or(before, state.values[self.ending.end])
            counts = tf.logical_not(before if self.ending.include_eos else ended)
            lens += tf.cast(counts, tf.int32)
        result = {"ended": ended, "lens": lens}
        if self.choices:
            result["scores"] = hyps.scores
            self._last = hyps
        return result

    # --- after the loop ---

    def _finish(self, ctx: EmitContext, count: Any, search: Dict[str, Any], results: Any, sources: Any) -> None:
        dim, beam = self.ending.time_dim, self.beam_size
        size = count
        if dim is not None:
            size = tf.reduce_max(tf.concat([search["lens"], [0]], axis=0))
            ctx.define_lens(dim, search["lens"], size)
            if self.choices:
                ctx.lowering.beam_dims[dim] = beam
        entries = None
        if self.choices:
            entries = read_backwards(sources[0].gather(tf.range(count)), beam)
            scores = ctx.lowering.beam_scores[self.path] = self._final_scores(ctx, count, size, search)
            if self.ending.end is not None:
                best = tf.argmax(scores, axis=1, output_type=tf.int32)
                ended = tf.gather(tf.reshape(search["ended"], tf.shape(scores)), best, batch_dims=1)
                ctx.lowering.not_ended[self.path] = tf.reduce_sum(tf.cast(tf.logical_not(ended), tf.int32))
        names = [node.path for node in self.collected]
        names += [step_output_name(node, name) for node, name in self.constrained]
        for node, name, array in zip(self._written, names, results):
            value = array.gather(tf.range(count))
            if not self.back_prop and value.dtype.is_floating:
                value = tf.stop_gradient(value)
            value.set_shape([None, *node.output.static_shape])
            axis = node.output.batch_axis
            if entries is not None and axis is not None:
                value = along_hypotheses(value, entries, axis + 1)
            ctx.set_sub_output(name, value[:size] if dim is not None else value)

    def _final_scores(self, ctx: EmitContext, count: Any, size: Any, search: Dict[str, Any]) -> Any:
        """[batch, beam]

        :param count: number of steps of the loop
        :param size: that of the longest hypothesis
        """
        scores, include_eos, last = search["scores"], self.ending.include_eos, self._last
        if not last.normalize:
            return scores
        if not self.independent_of_batch:
            return scores / tf.cast(size + (0 if include_eos else 1), tf.float32)
        steps = steps_taken(search["ended"], search["lens"], count, include_eos)
        if self.ending.end is None:
            steps = self._known_lens
        return normalized(scores, tf.reshape(steps, tf.shape(scores)), last.exponent)
