"""The while loop of a step network: `tf.while_loop` with carried values, slices of known values, and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union, cast

from returnn_tf.config.errors import LoopError
from returnn_tf.graph.carried_state import LAST_BLOCK
from returnn_tf.graph.constraints import constrained_values, step_output_name
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.loops.aux_values import ALL_STEPS, STEP_INPUT
from returnn_tf.loops.carried import CarriedValues, state_keys
from returnn_tf.loops.hypotheses import (
    Hypotheses,
    after_step,
    follow_choice,
    followers_of_choices,
    normalized,
    steps_taken,
    with_early_stop,
)
from returnn_tf.loops.inputs import in_beam, max_steps, read_params, step_array
from returnn_tf.loops.nodes import AccumLayer, ExitLayer, StepSliceLayer
from returnn_tf.loops.outputs import (
    StackedFrames,
    StackedResult,
    batch_of_step,
    check_follows_hypotheses,
    dims_of_step,
    run_loop,
    sizes_before,
)
from returnn_tf.loops.plan import LoopPlan, PreviousValue
from returnn_tf.loops.recompute import recomputed
from returnn_tf.loops.step import StepEmitter
from returnn_tf.native.portable import in_portable_ops
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.ops.sequence.beam import along_hypotheses, read_backwards
from returnn_tf.ops.sequence.hypothesis_scores import by_longest
from returnn_tf.tensor import Data, Dim, DimKind, batch_dim
from returnn_tf.util.lazy_tf import tf

#: The number of steps of each sequence, where a search goes on from block to block of frames.
_STEPS, _FLAGS = Data((batch_dim,), "int32"), Data((batch_dim,), "bool")


class LoopRunLayer(Layer):
    """The loop of a step network. Its node has the layers of a step as ``inner``."""

    class_name = "loop"
    is_connector = True

    def __init__(self, loop: LoopPlan) -> None:
        super().__init__()
        self.loop = loop
        #: The nodes of the step whose values are wanted for all steps: known once the whole network is planned.
        self.collected: tuple[Node, ...] = ()

    def collect(self, node: Node) -> None:
        """Have the values of a node of the step for all steps."""
        if node not in self.collected:
            self.collected = (*self.collected, node)

    def read_after_step(self) -> set[Node]:
        """Return the nodes of the step whose values the loop carries on, collects, or ends by."""
        end = self.loop.ending.end
        return {*(prev.of for prev in self.loop.prevs), *self.collected, *([] if end is None else [end])}

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the number of steps; the collected values are further outputs by path."""
        return LoopFrame(self.loop, self.collected, ctx).run()


def loop_of(node: Node) -> Optional[LoopPlan]:
    """Return the loop that a node runs, or None."""
    return node.layer.loop if isinstance(node.layer, LoopRunLayer) else None


def previous_value(node: Node) -> Optional[PreviousValue]:
    """Return what the loop carries as ``prev:`` of a layer, or None.

    :param node: the values of the layer for all steps, seen from outside
    """
    while node.sources and isinstance(node.layer, (ExitLayer, AccumLayer)):
        source = node.sources[0]
        loop = loop_of(source)
        if isinstance(node.layer, AccumLayer) and loop is not None:
            return next((prev for prev in loop.prevs if prev.of is node.layer.of), None)
        node = source
    return None


class LoopFrame:
    """One emission of a loop. The plan of the loop does not refer to it, so that it can be emitted more than once.

    :param loop: the planned loop
    :param collected: the nodes of the step whose values are wanted for all steps
    :param ctx: the context of the node that runs it
    """

    def __init__(self, loop: LoopPlan, collected: Sequence[Node], ctx: EmitContext) -> None:
        self._loop = loop
        self._collected = collected
        #: The nodes whose values a step writes, in this order.
        self._written = [*collected, *(node for node, _ in loop.constrained)]
        #: Of these, those with an axis whose lengths the step defines.
        self._by_step = dims_of_step(ctx, self._written)
        self._step_dims = list(dict.fromkeys(self._by_step.values()))
        self._node = ctx.node
        self._ctx = ctx
        self._batch = ctx.lowering.dims.batch_size
        #: The maximum number of steps.
        self._limit = max_steps(loop, ctx)
        #: In search, every value enters the loop once per hypothesis.
        searches = loop.search is not None and not ctx.train
        self._native = searches and not in_portable_ops()
        lowering = in_beam(ctx.lowering, ctx.node.deps, loop.beam_size, stays=loop.keeps_beam, native=self._native)
        self._inner = EmitContext(ctx.node, lowering)
        self._inner.lowering.search.in_place = searches
        #: In search, where the number of steps is known: [batch * beam].
        self._known_lens: Any = None
        if loop.search is not None and loop.ending.end is None:
            lens = self._inner.lowering.dims.get_lens(loop.loop_dim)
            self._known_lens = tf.broadcast_to(lens, [self._batch * loop.beam_size])
        #: In search, in a stream: the number of steps of each sequence in the blocks before, int32 [batch].
        self._steps_before: Any = None
        self._scores_before: Any = None  # likewise the scores, [batch, beam]
        self._followers = followers_of_choices(loop, ctx.node.inner)
        #: In search: the hypotheses at the end of the step, once it is emitted.
        self._last: Optional[Hypotheses] = None
        if loop.search is not None and loop.ending.end is not None and ctx.continues:
            raise LoopError(
                "Layer %r: a search that ends by its layer 'end' needs all frames, so it can't go on from block to "
                "block of frames. One with a label or a blank for each frame can." % loop.path
            )
        self._carried = CarriedValues(loop, ctx)
        if loop.search is not None:
            for node in self._written:
                check_follows_hypotheses(ctx, node, node.output)
        self._inner.lowering.loop.continues = self._carried.in_stream
        self._inner.lowering.loop.steps = self._limit if self._gradients_after_steps() else None
        self._tells_last_block = self._carried.in_stream and any(node.layer.needs_last_step for node in ctx.node.inner)
        knows_last = self._tells_last_block or not self._carried.in_stream
        self._inner.lowering.loop.lens = self._lens() if knows_last else None
        self._inner.lowering.loop.is_last_block = None
        if self._tells_last_block:
            is_last = ctx.state_before(LAST_BLOCK, _FLAGS, tf.zeros([self._batch], tf.bool))
            self._inner.lowering.loop.is_last_block = tf.repeat(is_last, loop.beam_size)

    def run(self) -> Any:
        """Emit the loop and return the number of steps. The collected values become further outputs of the node."""
        loop, limit = self._loop, self._limit
        arrays = [self._unstacked(outer, inner) for outer, inner in loop.slices]
        read_params(self._inner, self._node.inner, native=self._native)
        if loop.keeps_beam:  # else values per hypothesis would not have the right size in all of the step
            arrays += self._before_loop()
        search = self._initial_search()
        states = self._carried.first(self._inner)
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
        self._finish(count, search, self._all_steps(results, written, count))
        lens = self._final_lens(search)
        self._carried.keep(states, lens)
        if self._steps_before is not None:
            self._ctx.state_after("scores", self._scores_in_stream, search["scores"])
            self._ctx.state_after("steps", _STEPS, self._steps_before + lens)
        if self._tells_last_block:
            self._ctx.state_after(LAST_BLOCK, _FLAGS, tf.zeros([self._batch], tf.bool))
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
                if dim.is_dynamic() and not dim.is_batch and dim is not self._loop.loop_dim and ctx.has_lens(dim):
                    ctx.seq_mask(dim)
        return arrays

    def _unstacked(self, outer: Node, inner: Node) -> Any:
        data = outer.output
        axis = data.axes_of(cast(StepSliceLayer, inner.layer).loop_dim)[0]
        x = move_axis(self._inner.value(outer), data.rank, axis, 0)
        self._inner.set_aux(inner, ALL_STEPS, x)
        return step_array(x, self._limit)

    def _gradients_after_steps(self) -> bool:
        """Return whether gradients of what the steps share are computed from the arguments of all of them."""
        known = self._loop.ending.end is None and self._loop.search is None and not self._loop.recomputes
        return self._ctx.train and known and not self._ctx.lowering.options.second_derivatives

    def _initial_search(self) -> dict[str, Any]:
        loop, batch = self._loop, self._batch
        if loop.ending.end is None and loop.search is None:
            return {}
        end = loop.ending.end
        if end is not None and end.output.rank == 0 and loop.search is None:
            return {"ended": tf.constant(False), "lens": tf.constant(0)}
        entries = batch * loop.beam_size
        search = {"ended": tf.fill([entries], False), "lens": tf.zeros([entries], tf.int32)}
        if loop.search is not None:
            scores = tf.zeros([batch, loop.beam_size], self._ctx.float_dtype)
            if self._carried.in_stream:
                scores = self._ctx.state_before("scores", self._scores_in_stream, scores)
                self._scores_before = scores
                self._steps_before = self._ctx.state_before("steps", _STEPS, tf.zeros([batch], tf.int32))
            search["scores"] = tf.ensure_shape(scores, [None, loop.beam_size])
        for value in search.values():
            value.set_shape([None, *value.shape[1:]])
        return search

    @property
    def _scores_in_stream(self) -> Data:
        """Return the template of the scores that a search has after a block of frames."""
        return Data((batch_dim, Dim(DimKind.SPATIAL, self._loop.beam_size, "hypotheses")), self._ctx.float_dtype)

    def _results(self) -> list[Union[StackedResult, StackedFrames]]:
        """Return the results to stack.

        These are the values of layers, for each axis whose lengths the step defines these and its size, and, in search,
        the entries that hypotheses continue.
        """
        loop, limit, is_full = self._loop, self._limit, self._loop.ending.end is None

        def of(dtype: Any, sizes: list[Any]) -> StackedResult:
            return StackedResult(dtype, sizes, limit, is_full=is_full)

        results: list[Union[StackedResult, StackedFrames]] = []
        for node in self._written:
            outer_beam = 1 if node.output.beam is None else node.output.beam.size  # of a search before this loop
            sizes = sizes_before(self._ctx, node.output, loop.beam_size * outer_beam)
            dim = self._by_step.get(node)
            results.append(
                of(node.output.dtype, sizes) if dim is None else StackedFrames(node, dim, sizes, limit, is_full=is_full)
            )
        for _ in self._step_dims:
            results += [of("int32", [self._batch * loop.beam_size]), of("int32", [])]
        return results if loop.search is None else [*results, of("int32", [self._batch, loop.beam_size])]

    def _all_steps(self, results: Sequence[Union[StackedResult, StackedFrames]], arrays: Any, count: Any) -> list[Any]:
        """Return the values of all results, with the steps as the first axis."""
        values: list[Any] = [None] * len(results)
        for i, result in enumerate(results):
            if isinstance(result, StackedResult):
                values[i] = result.all_steps(arrays[i], count)
        for i, result in enumerate(results):
            if isinstance(result, StackedFrames):
                sizes = values[len(self._written) + 2 * self._step_dims.index(result.dim) + 1]
                values[i] = result.all_steps(arrays[i], sizes)
        return values

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

        if self._loop.search is not None or not self._ctx.train or not self._loop.recomputes:
            return self._step(i, [array.read(i) for array in arrays], carried, search)
        flat = recomputed(step, inputs(), inputs)
        results = [*self._written, *self._step_dims, *self._step_dims]
        values, states, ended = tf.nest.pack_sequence_as([results, list(carried), search], flat)
        return values, states, ended, None

    def _step(
        self, i: Any, given: Sequence[Any], carried: Any, search: dict[str, Any]
    ) -> tuple[list[Any], list[Any], dict[str, Any], Any]:
        """Return (collected values, next states, hypotheses, the [batch, beam] entries that these continue).

        :param given: the values known for this step: the slices, then what layers prepared before the loop
        """
        loop, layers = self._loop, self._node.inner
        made = [(node, STEP_INPUT) for node in layers if self._inner.aux(node, STEP_INPUT) is not None]
        inputs = dict(zip([*(inner for _, inner in loop.slices), *made], given))
        inputs.update(zip(self._carried.keys, carried))
        step = StepEmitter(loop, self._inner.lowering, i, inputs)
        lowering = step.lowering
        hyps = self._hypotheses(i, search)
        lowering.search.hypotheses = None if loop.search is None else hyps
        lowering.loop.ended = None if hyps is None else hyps.ended
        for position, node in enumerate(layers):
            step.emit([node])
            if hyps is not None and hyps.chosen is not None:
                later = self._needed_after(position, hyps)
                for value in later:
                    if value in lowering.values.outputs:
                        check_follows_hypotheses(self._ctx, value, value.output)
                follow_choice(
                    lowering,
                    node,
                    later,
                    state_keys(layers),
                    self._batch,
                    self._inner.lowering,
                )
        new_states = self._carried.after_step(step, self._lens())
        source = None if hyps is None else hyps.source
        values = [step.value(node) for node in self._collected]
        values += [constrained_values(EmitContext(node, lowering))[name] for node, name in loop.constrained]
        values = [self._stackable(node, x) for node, x in zip(self._written, values)]
        values += self._lens_of_step(step)
        return values, new_states, self._ended(step, hyps, search), source

    def _stackable(self, node: Node, x: Any) -> Any:
        """Return the value of a step as it is written: an axis whose lengths the step defines comes first."""
        dim = self._by_step.get(node)
        return x if dim is None else move_axis(x, node.output.rank, node.output.dims.index(dim), 0)

    def _lens_of_step(self, step: StepEmitter) -> list[Any]:
        """Return the lengths, int32 [batch * beam], and the size of each axis whose lengths the step defines."""
        if not self._step_dims:
            return []
        dims, entries = step.lowering.dims, self._batch * self._loop.beam_size
        lens = [(tf.broadcast_to(dims.get_lens(d), [entries]), tf.identity(dims.get_size(d))) for d in self._step_dims]
        return [x for pair in lens for x in pair]

    def _needed_after(self, position: int, hyps: Hypotheses) -> list[Node]:
        """Return the nodes of the step, and its inputs, used after a choice; all, if the beam size changes.

        The order is the same in each run, since the ops are created in it.

        :param position: of the choice among the layers of the step
        """
        loop, nodes, deps = self._loop, self._node.inner, self._node.deps
        later = [*(prev.of for prev in loop.prevs), *self._collected]
        if loop.ending.end is not None:
            later.append(loop.ending.end)
        for node in nodes[position + 1 :]:
            later += [node, *node.deps]
        assert hyps.scores is not None
        if hyps.scores.shape[1] != hyps.beam:
            return list(dict.fromkeys([*later, *deps]))
        same = {*deps, *(inner for _, inner in loop.slices if inner not in nodes[: position + 1])}
        return [node for node in dict.fromkeys(later) if node not in same]

    def _hypotheses(self, i: Any, search: dict[str, Any]) -> Optional[Hypotheses]:
        if not search:
            return None
        loop, beam = self._loop, self._loop.beam_size
        scores = search.get("scores")
        ended = search["ended"]
        counts = steps_taken(ended, search["lens"], i, loop.ending.include_eos)
        if loop.ending.end is None and loop.loop_dim.is_dynamic():
            lens = self._known_lens
            ended = i >= (lens if loop.ending.include_eos or loop.independent_of_batch else lens + 1)
            counts = tf.minimum(i, lens)
        step = i
        if self._steps_before is not None:
            ended, taken = i >= lens, tf.minimum(i, lens)
            step = tf.expand_dims(self._steps_before + taken[::beam], 1)
            counts = tf.repeat(self._steps_before, beam) + taken
        source = None if loop.search is None else tf.tile(tf.range(beam)[None], [self._batch, 1])
        return Hypotheses(step, scores, ended, beam, source, counts=counts, followers=self._followers)

    def _ended(self, step: StepEmitter, hyps: Optional[Hypotheses], search: dict[str, Any]) -> dict[str, Any]:
        if hyps is None:
            return search
        loop, lens = self._loop, search["lens"]
        if loop.search is not None:
            index = hyps.source + tf.expand_dims(tf.range(tf.shape(hyps.source)[0]), 1) * loop.beam_size
            lens = tf.gather(lens, tf.reshape(index, [-1]))
        ended = hyps.ended
        if loop.ending.end is not None:
            end = with_early_stop(loop, hyps, ended, lens, step.value(loop.ending.end), self._limit)
            ended, lens = after_step(ended, lens, end, loop.ending.include_eos)
        result = {"ended": ended, "lens": lens}
        if loop.search is not None:
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
            if loop.search is not None:
                ctx.lowering.dims.beam_dims[dim] = beam
        entries = None
        if loop.search is not None:
            entries, before = read_backwards(results[-1], beam)
            if self._steps_before is not None:
                ctx.lowering.search.sources[loop.path] = before
                scores_before = tf.gather(self._scores_before, before, batch_dims=1)
                ctx.lowering.search.scores_before[loop.path] = scores_before
            scores = ctx.lowering.search.beam_scores[loop.path] = self._final_scores(count, size, search)
            if loop.ending.end is not None:
                best = tf.argmax(scores, axis=1, output_type=tf.int32)
                ended = tf.gather(tf.reshape(search["ended"], tf.shape(scores)), best, batch_dims=1)
                ctx.lowering.search.not_ended[loop.path] = tf.reduce_sum(tf.cast(tf.logical_not(ended), tf.int32))
        for i, step_dim in enumerate(self._step_dims):
            lens, sizes = results[len(self._written) + 2 * i :][:2]
            lens = lens if entries is None else along_hypotheses(lens, entries, 1)
            lens = lens if dim is None else lens[:size]
            ctx.define_lens_over(step_dim, [loop.loop_dim, batch_dim], lens, tf.reduce_max(tf.concat([sizes, [0]], 0)))
            if loop.search is not None:
                ctx.lowering.dims.beam_dims[step_dim] = beam
        names = [node.path for node in self._collected]
        names += [step_output_name(node, name) for node, name in loop.constrained]
        for node, name, value in zip(self._written, names, results):
            if not loop.back_prop and value.dtype.is_floating:
                value = tf.stop_gradient(value)
            value.set_shape([None, *node.output.static_shape])
            axis = node.output.batch_axis
            if entries is not None and axis is not None:
                value = along_hypotheses(value, entries, axis + 1)
            batch = batch_of_step(ctx, node.output)
            if batch is not None and batch.expr is None:
                ctx.define_size(batch, tf.shape(value)[cast(int, axis) + 1])
            ctx.set_sub_output(name, value[:size] if dim is not None else value)

    def _lens(self) -> Any:
        """Return the number of steps, int32 [batch * beam] or scalar, if it is known before the loop, else None."""
        return None if self._loop.ending.end is not None else self._inner.lens(self._loop.loop_dim)

    def _final_lens(self, search: dict[str, Any]) -> Any:
        """Return the number of steps of each sequence, int32 [batch] or scalar."""
        lens = self._lens()
        lens = search["lens"] if lens is None else lens
        return lens[:: self._loop.beam_size] if lens.shape.rank else lens

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
        if self._steps_before is not None:
            size = tf.expand_dims(self._steps_before + self._known_lens[:: loop.beam_size], 1)
        if not loop.independent_of_batch:
            return by_longest(scores, tf.cast(size, scores.dtype), include_eos=include_eos)
        steps = steps_taken(search["ended"], search["lens"], count, include_eos)
        if loop.ending.end is None:
            steps = self._known_lens if self._steps_before is None else tf.repeat(size, loop.beam_size)
        return normalized(scores, tf.reshape(steps, tf.shape(scores)), last.exponent)
