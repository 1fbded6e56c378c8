"""Runs the layers of a step in a loop: `tf.while_loop` with carried values, slices of known values, and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.constraints import constrained_values, step_output_name
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import Node
from returnn_tf.loops.aux_values import ALL_STEPS, STEP_INPUT
from returnn_tf.loops.early_stop import with_early_stop
from returnn_tf.loops.hypotheses import Hypotheses, after_step, follow_choice, normalized, steps_taken
from returnn_tf.loops.inputs import (
    begin_step,
    check_step,
    in_beam,
    initial_states,
    max_steps,
    read_params,
    state_keys,
    step_array,
)
from returnn_tf.loops.kept import hold_after_end, keep_states
from returnn_tf.loops.needed_later import needed_after
from returnn_tf.loops.outputs import StepResult, run_loop, sizes_before
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.loops.recompute import recomputed
from returnn_tf.loops.stream import LoopStream
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.ops.sequence.beam import along_hypotheses, read_backwards
from returnn_tf.tensor.precision import float_dtype
from returnn_tf.util.lazy_tf import tf


class LoopFrame:
    """One emission of a loop. The plan of the loop does not refer to it, so that it can be emitted more than once.

    :param loop: the planned loop
    :param ctx: the context of the node that runs it
    """

    def __init__(self, loop: LoopPlan, ctx: EmitContext) -> None:
        self._loop = loop
        self._node = ctx.node
        self._ctx = ctx
        self._batch = ctx.lowering.batch_size
        #: The maximum number of steps.
        self._limit = max_steps(loop, ctx)
        #: In search, every value enters the loop once per hypothesis.
        self._inner = EmitContext(ctx.node, in_beam(ctx.lowering, ctx.node.deps, loop.beam_size, stays=loop.keeps_beam))
        self._inner.lowering.in_place = bool(loop.choices) and not ctx.train
        #: In search, where the number of steps is known: [batch * beam].
        self._known_lens: Any = None
        if loop.choices and loop.ending.end is None:
            lens = self._inner.lowering.get_lens(loop.loop_dim)
            self._known_lens = tf.broadcast_to(lens, [self._batch * loop.beam_size])
        #: In search: the hypotheses at the end of the step, once it is emitted.
        self._last: Optional[Hypotheses] = None
        self._stream = LoopStream(loop, ctx)
        self._inner.lowering.continues_in_step = self._stream.active

    def run(self) -> Any:
        """Emit the loop and return the number of steps. The collected values become further outputs of the node."""
        loop, limit = self._loop, self._limit
        arrays = [self._unstacked(outer, inner) for outer, inner in loop.slices]
        read_params(self._inner, self._node.inner)
        if loop.keeps_beam:  # else values per hypothesis would not have the right size in all of the step
            arrays += self._before_loop()
        search = self._initial_search()
        first = initial_states(loop.prevs, self._inner, state_keys(self._node.inner))
        states = self._stream.enter(list(first.values()))
        results = self._results()
        shapes = [x.shape for x in tf.nest.flatten(states)]
        search_shapes = {key: value.shape for key, value in search.items()}

        def go_on(i: Any, _states: Any, search: Any, *_: Any) -> Any:
            more = i < limit
            return tf.logical_and(more, tf.logical_not(tf.reduce_all(search["ended"]))) if loop.ending.end else more

        def body(i: Any, carried: Any, search: Any, written: Any) -> Any:
            values, new_states, search, source = self._run_step(self._within_source(i), arrays, carried, search)
            for x, shape in zip(tf.nest.flatten(new_states), shapes):
                x.set_shape(shape)
            for key, shape in search_shapes.items():
                search[key].set_shape(shape)
            return i + 1, new_states, search, [array.write(i, x) for array, x in zip(written, [*values, source])]

        start = (tf.constant(0), states, search, [result.array for result in results])
        count, states, search, written = run_loop(go_on, body, start, limit)
        self._finish(count, search, [result.all_steps(array, count) for result, array in zip(results, written)])
        self._keep(search, states)
        return count

    # --- before the loop ---

    def _before_loop(self) -> list[Any]:
        """Compute what all steps share: masks, and what layers prepare.

        :return: arrays that layers prepared for each step
        """
        ctx = self._inner
        arrays = []
        for node in self._node.inner:
            node.layer.before_loop(EmitContext(node, ctx.lowering))
            made = ctx.aux(node, STEP_INPUT)
            if made is not None:
                arrays.append(step_array(made, self._limit))
        for outer in self._node.deps:
            for dim in outer.output.dims:
                if dim.is_dynamic and not dim.is_batch and dim is not self._loop.loop_dim and ctx.has_lens(dim):
                    ctx.seq_mask(dim)
        return arrays

    def _unstacked(self, outer: Node, inner: Node) -> Any:
        data = outer.output
        layer: Any = inner.layer  # a StepSliceLayer
        x = move_axis(self._inner.value(outer), data.rank, data.axes_of(layer.loop_dim)[0], 0)
        self._inner.set_aux(inner, ALL_STEPS, x)
        return step_array(x, self._limit)

    def _initial_search(self) -> dict[str, Any]:
        loop, batch = self._loop, self._batch
        if loop.ending.end is None and not loop.choices:
            return {}
        end = loop.ending.end
        if end is not None and end.output.rank == 0 and not loop.choices:
            return {"ended": tf.constant(False), "lens": tf.constant(0)}
        entries = batch * loop.beam_size
        search = {"ended": tf.fill([entries], False), "lens": tf.zeros([entries], tf.int32)}
        if loop.choices:
            search["scores"] = tf.ensure_shape(tf.zeros([batch, loop.beam_size], float_dtype()), [None, loop.beam_size])
        for value in search.values():
            value.set_shape([None, *value.shape[1:]])
        return search

    def _results(self) -> list[StepResult]:
        """Return what each step writes: values of layers and, in search, the entries that hypotheses continue."""
        loop, is_full = self._loop, self._loop.ending.end is None
        kinds = [(n.output.dtype, sizes_before(self._ctx.lowering, n.output, loop.beam_size)) for n in loop.written]
        kinds += [("int32", [self._batch, loop.beam_size])] if loop.choices else []
        return [StepResult(dtype, sizes, self._limit, is_full=is_full) for dtype, sizes in kinds]

    # --- one step ---

    def _within_source(self, i: Any) -> Any:
        """Return the step index, checked to be one of the source if the loop finds its end itself."""
        if self._loop.source_dim is None:
            return i
        text = (
            "Layer %r: the loop runs past the end of its source, since its layer 'end' is not true for all by then. "
            "Give a smaller max_seq_len. Step and length of the source:" % self._loop.path
        )
        size = self._ctx.size(self._loop.source_dim)
        with tf.control_dependencies([tf.debugging.Assert(i < size, [text, i, size])]):
            return tf.identity(i)

    def _run_step(
        self, i: Any, arrays: list[Any], carried: Any, search: dict[str, Any]
    ) -> tuple[list[Any], list[Any], dict[str, Any], Any]:
        """Run `_step`, recomputed in the backward pass if requested."""

        def inputs() -> list[Any]:
            return [i, *(array.read(i) for array in arrays), *tf.nest.flatten([list(carried), search])]

        def step(i: Any, *flat: Any) -> list[Any]:
            states, flags = tf.nest.pack_sequence_as([list(carried), search], flat[len(arrays) :])
            results: list[Any] = tf.nest.flatten(self._step(i, flat[: len(arrays)], states, flags)[:3])
            return results

        if self._loop.choices or not self._ctx.train or not self._loop.recomputes:
            return self._step(i, [array.read(i) for array in arrays], carried, search)
        flat = recomputed(step, inputs(), inputs)
        values, states, ended = tf.nest.pack_sequence_as([self._loop.written, list(carried), search], flat)
        return values, states, ended, None

    def _step(
        self, i: Any, given: Sequence[Any], carried: Any, search: dict[str, Any]
    ) -> tuple[list[Any], list[Any], dict[str, Any], Any]:
        """Return (collected values, next states, hypotheses, the [batch, beam] entries that these continue).

        :param given: the values known for this step: the slices, then what layers prepared before the loop
        """
        loop, layers = self._loop, self._node.inner
        made = [(node, STEP_INPUT) for node in layers if self._inner.aux(node, STEP_INPUT) is not None]
        keys = state_keys(layers)
        inputs = dict(zip([*(inner for _, inner in loop.slices), *made], given))
        inputs.update(zip([*(prev for prev, _, _ in loop.prevs), *keys], carried))
        state = begin_step(loop, self._inner.lowering, i, inputs)
        hyps = self._hypotheses(i, search)
        state.hypotheses = hyps if loop.choices else None
        state.ended = None if hyps is None else hyps.ended
        for position, node in enumerate(layers):
            emit_node(state, node)
            if hyps is not None and hyps.chosen is not None:
                follow_choice(
                    state, node, needed_after(loop, layers, self._node.deps, position, hyps), keys, self._batch
                )
        check_step(state)
        hold_after_end(loop, state, layers, self._lens())
        new_states = [state.values[of] for _, of, _ in loop.prevs] + [state.next_states[name] for name in keys]
        new_states = self._stream.held(state, carried, new_states, self._lens())
        source = None if hyps is None else hyps.source
        values = [state.values[node] for node in loop.collected]
        values += [constrained_values(EmitContext(node, state))[name] for node, name in loop.constrained]
        return values, new_states, self._ended(state, hyps, search), source

    def _hypotheses(self, i: Any, search: dict[str, Any]) -> Optional[Hypotheses]:
        if not search:
            return None
        loop, beam = self._loop, self._loop.beam_size
        scores = search.get("scores")
        ended = search["ended"]
        counts = steps_taken(ended, search["lens"], i, loop.ending.include_eos)
        if loop.ending.end is None and loop.loop_dim.is_dynamic:
            lens = self._known_lens
            ended = i >= (lens if loop.ending.include_eos or loop.independent_of_batch else lens + 1)
            counts = tf.minimum(i, lens)
        source = tf.tile(tf.range(beam)[None], [self._batch, 1])
        return Hypotheses(i, scores, ended, beam, source, counts=counts)

    def _ended(self, state: Lowering, hyps: Optional[Hypotheses], search: dict[str, Any]) -> dict[str, Any]:
        if hyps is None:
            return search
        loop, lens = self._loop, search["lens"]
        if loop.choices:
            index = hyps.source + tf.expand_dims(tf.range(tf.shape(hyps.source)[0]), 1) * loop.beam_size
            lens = tf.gather(lens, tf.reshape(index, [-1]))
        ended = hyps.ended
        if loop.ending.end is not None:
            end = with_early_stop(loop, hyps, ended, lens, state.values[loop.ending.end], self._limit)
            ended, lens = after_step(ended, lens, end, loop.ending.include_eos)
        result = {"ended": ended, "lens": lens}
        if loop.choices:
            result["scores"] = hyps.scores
            self._last = hyps
        return result

    # --- after the loop ---

    def _finish(self, count: Any, search: dict[str, Any], results: list[Any]) -> None:
        ctx, loop = self._ctx, self._loop
        dim, beam = loop.ending.time_dim, loop.beam_size
        size = count
        if dim is not None:
            size = tf.reduce_max(tf.concat([tf.reshape(search["lens"], [-1]), [0]], axis=0))
            ctx.define_lens(dim, search["lens"], size)
            if loop.choices:
                ctx.lowering.beam_dims[dim] = beam
        entries = None
        if loop.choices:
            entries = read_backwards(results[-1], beam)
            scores = ctx.lowering.beam_scores[loop.path] = self._final_scores(count, size, search)
            if loop.ending.end is not None:
                best = tf.argmax(scores, axis=1, output_type=tf.int32)
                ended = tf.gather(tf.reshape(search["ended"], tf.shape(scores)), best, batch_dims=1)
                ctx.lowering.not_ended[loop.path] = tf.reduce_sum(tf.cast(tf.logical_not(ended), tf.int32))
        names = [node.path for node in loop.collected]
        names += [step_output_name(node, name) for node, name in loop.constrained]
        for node, name, value in zip(loop.written, names, results):
            if not loop.back_prop and value.dtype.is_floating:
                value = tf.stop_gradient(value)
            value.set_shape([None, *node.output.static_shape])
            axis = node.output.batch_axis
            if entries is not None and axis is not None:
                value = along_hypotheses(value, entries, axis + 1)
            ctx.set_sub_output(name, value[:size] if dim is not None else value)

    def _keep(self, search: dict[str, Any], states: Sequence[Any]) -> None:
        """Keep what layers declare to keep for the next batch."""
        loop, lens = self._loop, self._lens()
        lens = search["lens"] if lens is None else lens
        lens = lens[:: loop.beam_size] if lens.shape.rank else lens
        values, in_stream = states[len(loop.prevs) :], self._stream.active
        keep_states(self._ctx, self._node.inner, values, loop.beam_size, lens, in_stream=in_stream)
        self._stream.leave(states)

    def _lens(self) -> Any:
        """Return the number of steps, int32 [batch * beam] or scalar, if it is known before the loop, else None."""
        return None if self._loop.ending.end is not None else self._inner.lens(self._loop.loop_dim)

    def _final_scores(self, count: Any, size: Any, search: dict[str, Any]) -> Any:
        """Return the final scores, [batch, beam].

        :param count: number of steps of the loop
        :param size: number of steps of the longest hypothesis
        """
        loop, scores, last = self._loop, search["scores"], self._last
        include_eos = loop.ending.include_eos
        assert last is not None
        if not last.normalize:
            return scores
        if not loop.independent_of_batch:
            return scores / tf.cast(size + (0 if include_eos else 1), scores.dtype)
        steps = steps_taken(search["ended"], search["lens"], count, include_eos)
        if loop.ending.end is None:
            steps = self._known_lens
        return normalized(scores, tf.reshape(steps, tf.shape(scores)), last.exponent)
