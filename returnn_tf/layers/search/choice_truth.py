"""The label of the target in a step of a search: kept among the hypotheses ("cheating"), or mixed into samples."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.loops.hypotheses import Hypotheses
from returnn_tf.ops.frames.shape import move_axis
from returnn_tf.util.lazy_tf import tf


def true_label(ctx: EmitContext, node: Node, beam: int) -> Any:
    """Return the label of a target in this step, 0 after its end: int32 [batch].

    :param node: the target, for all steps
    :param beam: hypotheses per sequence in the value of the target
    """
    data = node.output
    x = move_axis(ctx.value(node), data.rank, data.time_axis or 0, data.rank - 1)
    step = ctx.lowering.loop.index
    size = tf.shape(x)[-1]
    label = tf.gather(x, tf.minimum(step, size - 1), axis=-1)[::beam]
    lens = ctx.lowering.dims.get_lens(data.dims[data.time_axis or 0])
    lens = lens[::beam] if lens.shape.rank else lens
    return tf.cast(tf.where(step < lens, label, 0), tf.int32)


def last_entry(hyps: Hypotheses) -> Any:
    """Return the last hypothesis before a choice; before the first choice all are copies of one."""
    return tf.where(tf.equal(hyps.step, 0) if hyps.choices == 0 else False, 0, hyps.beam - 1)


def without_truth(scores: Any, truth: Any, hyps: Hypotheses) -> Any:
    """Exclude the true label from the candidates of the last hypothesis, since it is kept anyway.

    :param scores: [batch, beam, labels]
    :param truth: [batch]
    """
    is_truth = tf.one_hot(truth, tf.shape(scores)[2], on_value=True, off_value=False)
    taken = tf.logical_and(is_truth[:, None], tf.equal(tf.range(hyps.beam), last_entry(hyps))[None, :, None])
    return tf.where(taken, tf.constant(float("-inf"), scores.dtype), scores)


def with_truth(scores: Any, truth: Any, hyps: Hypotheses, chosen: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Replace the last hypothesis by the true label, continuing the last one before.

    :param scores: [batch, beam, labels]
    :param truth: [batch]
    :param chosen: scores, source beams and labels, each [batch, beam]
    """
    best, source, labels = chosen
    last = last_entry(hyps)
    score = tf.gather(scores[:, last], truth, batch_dims=1)

    def replaced(values: Any, value: Any) -> Any:
        return tf.concat([values[:, :-1], tf.cast(value, values.dtype)[:, None]], axis=1)

    return replaced(best, score), replaced(source, tf.fill(tf.shape(truth), last)), replaced(labels, truth)
