"""The option ``early_stop`` of a choice: a sequence is done when nothing can beat its best ended hypothesis."""

from __future__ import annotations

from typing import Any

from returnn_tf.config import ConfigError
from returnn_tf.loops.hypotheses import Hypotheses, after_step, normalized, steps_taken
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.util.lazy_tf import tf


def check_early_stop(loop: LoopPlan) -> None:
    """Check that a loop whose choice has the option can end early.

    :raises ConfigError: it has other choices, or the number of steps is known
    """
    for choice in loop.choices:
        if not choice.layer.early_stop:  # type: ignore[attr-defined]
            continue
        if len(loop.choices) > 1:
            raise ConfigError(
                "Layer %r: early_stop is for the only choice of a loop, but there are %d. Remove the option."
                % (choice.path, len(loop.choices))
            )
        if loop.ending.end is None:
            raise ConfigError(
                "Layer %r: early_stop needs a loop that finds its end itself, but its number of steps is known. Remove "
                "the option, or give the loop a layer 'end'." % choice.path
            )


def with_early_stop(loop: LoopPlan, hyps: Hypotheses, ended: Any, lens: Any, end: Any, limit: Any) -> Any:
    """Return which hypotheses end in a step: if a sequence is done, all of them.

    Scores only fall. So the best that a hypothesis can reach is its score now; with length normalization, that score
    in the last step possible.

    :param ended: bool [batch * beam]: which had ended before the step
    :param lens: int32 [batch * beam]: before the step
    :param end: bool [batch * beam]: the value of the layer "end" in the step
    :param limit: the maximum number of steps
    """
    if not loop.stops_early:
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
