"""The hypotheses of a search while a loop runs: scores, ends, and back pointers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import Node
from returnn_tf.loops.in_place import InPlace
from returnn_tf.ops.sequence.beam import flat_index
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Hypotheses:
    """The state of a search within one step.

    :param step: step index, int32 scalar
    :param scores: [batch, beam]
    :param ended: bool [batch * beam]: whether a hypothesis had ended before this step
    :param beam: hypotheses per sequence now
    :param source: [batch, beam]: the entry at the start of the step that each hypothesis continues
    :param choices: number of choices made in this step
    :param chosen: [batch, beam]: set by a choice: the previous entry that each hypothesis continues
    :param counts: int32 [batch * beam]: the number of steps of each hypothesis before this one
    :param normalize: whether the final scores are divided by the number of steps
    :param exponent: exponent of that number, where every hypothesis is divided by its own
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

    def choose(self, scores: Any, source: Any) -> None:
        """Replace the hypotheses after a choice."""
        self.scores, self.chosen = scores, source
        self.choices += 1


def follow_choice(state: Lowering, choice: Node, later: Sequence[Node], states: list[Any], batch: Any) -> None:
    """Reorder, after a choice, all values needed later, so that they belong to the chosen hypotheses.

    :param later: nodes whose values are needed after the choice
    :param states: keys of the states of layers of the loop
    :param batch: number of sequences
    """
    hyps: Hypotheses = state.hypotheses
    assert hyps.chosen is not None
    before, after = hyps.beam, hyps.scores.shape[1]
    index = flat_index(hyps.chosen, before)

    def reorder(value: Any, axis: Optional[int]) -> Any:
        if isinstance(value, InPlace):
            return value.reordered(index)
        return value if axis is None else tf.gather(value, index, axis=axis)

    for node in later:
        if node in state.values and node is not choice:
            state.values[node] = reorder(state.values[node], node.output.batch_axis)
            for name, data in node.sub_outputs.items():
                if (node, name) in state.sub_values:
                    state.sub_values[node, name] = reorder(state.sub_values[node, name], data.batch_axis)
        if node in state.loop_inputs:
            state.loop_inputs[node] = reorder(state.loop_inputs[node], node.output.batch_axis)
    for node, key in states:
        axis = node.loop_states[key][0].batch_axis
        for values in (state.loop_inputs, state.next_states):
            if (node, key) in values and node is not choice:
                values[node, key] = reorder(values[node, key], axis)
    state.change_aux([node for node in later if node is not choice], reorder)
    hyps.ended = tf.gather(hyps.ended, index)
    hyps.counts = tf.gather(hyps.counts, index)
    hyps.source = tf.gather(hyps.source, hyps.chosen, batch_dims=1)
    hyps.chosen = None
    if after != before:
        hyps.beam = after
        resize_beam(state, before, after, batch)


def after_step(ended: Any, lens: Any, end: Any, include_eos: bool) -> tuple[Any, Any]:
    """Return which hypotheses have ended after a step, bool [batch * beam], and their lengths, int32.

    :param ended: which had ended before it
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
    return tf.where(ended, lens + (0 if include_eos else 1), step)


def normalized(scores: Any, counts: Any, exponent: float) -> Any:
    """Return the scores divided by ``counts ** exponent``; a hypothesis without steps counts as one step."""
    return scores / tf.cast(tf.maximum(counts, 1), scores.dtype) ** exponent


def resize_beam(state: Lowering, before: int, after: int, batch: Any) -> None:
    """Return lengths for another number of hypotheses; they are the same for all hypotheses of a sequence."""

    def resize(lens: Any) -> Any:
        return lens if lens.shape.rank == 0 else tf.repeat(lens[::before], after)

    state.batch_size = batch * after
    for lens in (state.lens, state.derived_lens):
        resized: dict[Any, Any] = {dim: resize(value) for dim, value in lens.items()}
        lens.clear()
        lens.update(resized)
    state.masks = {}
