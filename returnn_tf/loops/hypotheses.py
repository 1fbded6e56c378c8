"""The hypotheses of a search while a loop runs: scores, ends and back pointers, and what follows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.ops.sequence import hypothesis_scores
from returnn_tf.ops.sequence.beam import flat_index
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Hypotheses:
    """The state of a search within one step.

    :param step: step index, int32 scalar; in a stream int32 [batch, 1], with the steps of the blocks before
    :param scores: [batch, beam]
    :param ended: bool [batch * beam]: whether a hypothesis had ended before this step
    :param beam: hypotheses per sequence now
    :param source: [batch, beam]: the entry at the start of the step that each hypothesis continues
    :param choices: number of choices made in this step
    :param chosen: [batch, beam]: set by a choice: the previous entry that each hypothesis continues
    :param counts: int32 [batch * beam]: the number of steps of each hypothesis before this one
    :param normalize: whether the final scores are divided by the number of steps
    :param exponent: exponent of that number, where every hypothesis is divided by its own
    :param followers: see `followers_of_choices`
    """

    step: Any
    scores: Any
    ended: Any
    beam: int
    source: Any
    choices: int = 0
    chosen: Optional[Any] = None
    counts: Any = None
    normalize: bool = False
    exponent: float = 1.0
    followers: frozenset[Node] = frozenset()

    def choose(self, scores: Any, source: Any) -> None:
        """Replace the hypotheses after a choice."""
        self.scores, self.chosen = scores, source
        self.choices += 1


def followers_of_choices(loop: LoopPlan, nodes: Sequence[Node]) -> frozenset[Node]:
    """Return the layers of a step whose values belong to hypotheses: they depend on a choice, or on ``prev:``.

    :param nodes: the layers of the step, in the order of their computation
    """
    if loop.search is None:
        return frozenset()
    found = {*loop.search.choices, *(prev.node for prev in loop.prevs)}
    for node in nodes:
        if not found.isdisjoint(node.deps):
            found.add(node)
    return frozenset(found)


class InPlace(NamedTuple):
    """The state of a layer in a searching loop: frames of all steps, and which of them belong to each hypothesis.

    A layer may start with one, in place of the tensor that it declares, where the lowering has ``in_place``.

    :param arrays: [capacity, batch * beam, ...]: the frames of a step, for the hypotheses of that step; not reordered
    :param rows: one int32 [batch * beam, steps]: for each hypothesis, its entry in the frames of each step; none if
        another state of the layer has both
    """

    arrays: tuple[Any, ...]
    rows: tuple[Any, ...]

    def reordered(self, index: Any) -> InPlace:
        """Return the state for other hypotheses.

        :param index: int32 [batch * beam]: the hypothesis that each one continues
        """
        return self._replace(rows=tuple(tf.gather(rows, index) for rows in self.rows))


def empty_in_place(widths: list[int], entries: Any) -> InPlace:
    """Return a history without frames, with an array [capacity, entries, width] for each width."""
    # A constant shape would be part of the static one, which the loop would require to stay the same.
    arrays = tuple(
        tf.raw_ops.PlaceholderWithDefault(input=tf.zeros(tf.stack([0, entries, width])), shape=[None, None, width])
        for width in widths
    )
    rows = tf.raw_ops.PlaceholderWithDefault(input=tf.zeros(tf.stack([entries, 0]), tf.int32), shape=[None, None])
    return InPlace(arrays, (rows,))


# --- after a choice ---


def follow_choice(
    lowering: Lowering, choice: Node, later: Sequence[Node], states: list[Any], batch: Any, outer: Lowering
) -> None:
    """Reorder, after a choice, all values needed later, so that they belong to the chosen hypotheses.

    :param later: nodes whose values are needed after the choice
    :param states: keys of the states of layers of the loop
    :param batch: number of sequences
    :param outer: has the lengths from outside of the step
    """
    hyps: Hypotheses = lowering.search.hypotheses
    assert hyps.chosen is not None
    before, after = hyps.beam, hyps.scores.shape[1]
    index = flat_index(hyps.chosen, before)

    def reorder(value: Any, axis: Optional[int]) -> Any:
        if isinstance(value, InPlace):
            return value.reordered(index)
        return value if axis is None else tf.gather(value, index, axis=axis)

    outputs, sub_outputs = lowering.values.outputs, lowering.values.sub_outputs
    for node in later:
        if node in outputs and node is not choice:
            outputs[node] = reorder(outputs[node], node.output.batch_axis)
            for name, data in node.sub_outputs.items():
                if (node, name) in sub_outputs:
                    sub_outputs[node, name] = reorder(sub_outputs[node, name], data.batch_axis)
        if node in lowering.loop.inputs:
            lowering.loop.inputs[node] = reorder(lowering.loop.inputs[node], node.output.batch_axis)
    for node, key in states:
        axis = node.loop_states[key][0].batch_axis
        for values in (lowering.loop.inputs, lowering.loop.next_states):
            if (node, key) in values and node is not choice:
                values[node, key] = reorder(values[node, key], axis)
    lowering.values.change_aux([node for node in later if node is not choice], reorder)
    by_step = _reordered_lens(lowering, outer, index)
    hyps.ended = tf.gather(hyps.ended, index)
    hyps.counts = tf.gather(hyps.counts, index)
    hyps.source = tf.gather(hyps.source, hyps.chosen, batch_dims=1)
    hyps.chosen = None
    if after != before:
        hyps.beam = after
        resize_beam(lowering, before, after, batch)
    if by_step:
        lowering.dims.lens.update(by_step)
        lowering.dims.derived_lens = {
            d: x for d, x in lowering.dims.derived_lens.items() if d in outer.dims.derived_lens
        }
        lowering.dims.masks = {}


def _reordered_lens(lowering: Lowering, outer: Lowering, index: Any) -> dict[Dim, Any]:
    """Return the lengths by hypothesis that the step defines, of the hypotheses that are continued.

    :param index: int32 [batch * beam]: the hypothesis that each one continues
    """
    lens = lowering.dims.lens
    return {d: tf.gather(x, index) for d, x in lens.items() if d not in outer.dims.lens and x.shape.rank}


def resize_beam(lowering: Lowering, before: int, after: int, batch: Any) -> None:
    """Return lengths for another number of hypotheses; they are the same for all hypotheses of a sequence."""

    def resize(lens: Any) -> Any:
        return lens if lens.shape.rank == 0 else tf.repeat(lens[::before], after)

    lowering.dims.batch_size = batch * after
    for lens in (lowering.dims.lens, lowering.dims.derived_lens):
        resized: dict[Any, Any] = {dim: resize(value) for dim, value in lens.items()}
        lens.clear()
        lens.update(resized)
    lowering.dims.masks = {}


# --- the end of hypotheses ---


def after_step(ended: Any, lens: Any, end: Any, include_eos: bool) -> tuple[Any, Any]:
    """Return the mask of hypotheses that have ended after a step, bool [batch * beam], and their lengths, int32.

    :param ended: the mask before it
    :param lens: before it
    :param end: the value of the layer "end" in the step
    :param include_eos: whether the step in which it becomes true counts
    """
    now = tf.logical_or(ended, end)
    return now, lens + tf.cast(tf.logical_not(ended if include_eos else now), tf.int32)


def steps_taken(ended: Any, lens: Any, step: Any, include_eos: bool) -> Any:
    """Return the number of steps of each hypothesis whose end the loop determines, int32 [batch * beam].

    :param ended: bool [batch * beam]
    :param lens: int32 [batch * beam]: without the step of the end, unless ``include_eos``
    :param step: number of steps of the loop so far
    """
    return hypothesis_scores.steps_taken(tf, ended, lens, step, include_eos=include_eos)


def normalized(scores: Any, counts: Any, exponent: float) -> Any:
    """Return the scores divided by ``counts ** exponent``; a hypothesis without steps counts as one step.

    :param counts: int
    """
    return hypothesis_scores.normalized(tf, scores, tf.cast(counts, scores.dtype), exponent)


def with_early_stop(loop: LoopPlan, hyps: Hypotheses, ended: Any, lens: Any, end: Any, limit: Any) -> Any:
    """Return the mask of hypotheses that end in a step: if a sequence is done, all of them.

    Scores only fall. So the best that a hypothesis can reach is its score now; with length normalization, that score
    in the last step possible.

    :param ended: bool [batch * beam]: which had ended before the step
    :param lens: int32 [batch * beam]: before the step
    :param end: bool [batch * beam]: the value of the layer "end" in the step
    :param limit: the maximum number of steps
    """
    if loop.search is None or not loop.search.stops_early:
        return end
    scores, steps, include_eos = hyps.scores, hyps.step + 1, loop.ending.include_eos
    ended, lens = after_step(ended, lens, end, include_eos)
    own = best = scores
    if hyps.normalize and loop.independent_of_batch:
        counts = tf.reshape(steps_taken(ended, lens, steps, include_eos), tf.shape(scores))
        own = normalized(scores, counts, hyps.exponent)
        best = normalized(scores, limit, hyps.exponent)
    elif hyps.normalize:
        # While it waits for the others, an ended hypothesis is scaled by its number of steps.
        own = scores * tf.cast(limit / steps, scores.dtype) ** hyps.exponent
    is_ended = tf.reshape(ended, tf.shape(scores))
    worst = tf.constant(float("-inf"), scores.dtype)
    best_ended = tf.reduce_max(tf.where(is_ended, own, worst), axis=1)
    best_other = tf.reduce_max(tf.where(is_ended, worst, best), axis=1)
    return tf.logical_or(end, tf.repeat(best_ended > best_other, scores.shape[1]))
