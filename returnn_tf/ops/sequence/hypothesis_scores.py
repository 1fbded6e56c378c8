"""The arithmetic of scores of hypotheses, for tensors and for arrays of numpy.

The layer ``choice`` searches with TensorFlow, and `returnn_tf.export.steps.search` with numpy over an exported graph.
Parameters named ``xp`` are ``tf`` or ``np``, and numbers of steps have the type of the scores.
"""

from __future__ import annotations

from typing import Any

#: Score of all labels but one of a hypothesis that has ended.
OTHERS = -1e30


def combined(log_probs: Any, before: Any, *, prob_scale: float, base_scale: float) -> Any:
    """Return the scores of hypotheses continued by a label.

    :param before: their scores before it
    """
    return prob_scale * log_probs + base_scale * before


def of_ended(xp: Any, scores: Any, ended: Any, labels: Any, label: Any, others: Any) -> Any:
    """Return scores for hypotheses that have ended: 0 for one label, ``others`` for all others.

    :param scores: [batch, beam, labels]
    :param ended: bool [batch, beam]
    :param labels: all labels, [labels]
    :param label: the one label, [batch, beam, 1], or one for all
    :param others: `OTHERS` in the type of the scores
    """
    return xp.where(xp.expand_dims(ended, 2), xp.where(labels == label, xp.zeros_like(others), others), scores)


def grown(xp: Any, scores: Any, ended: Any, step: Any, exponent: float) -> Any:
    """Return scores multiplied by ``((step + 1) / step) ** exponent`` where a hypothesis has ended.

    So length normalization keeps their ratio to the scores of those that get longer.

    :param step: number of the step, from 0, where nothing grows
    """
    factor = ((step + 1.0) / xp.maximum(step, 1.0)) ** exponent
    return xp.where(xp.logical_and(ended, step > 0), scores * factor, scores)


def normalized(xp: Any, scores: Any, counts: Any, exponent: float) -> Any:
    """Return the scores divided by ``counts ** exponent``; a hypothesis without steps counts as one step."""
    return scores / xp.maximum(counts, 1.0) ** exponent


def by_longest(scores: Any, longest: Any, *, include_eos: bool) -> Any:
    """Return the scores at the end of a search whose scores have `grown`: by the steps of the longest hypothesis.

    :param longest: without the step of the end, unless ``include_eos``
    """
    return scores / (longest + (0.0 if include_eos else 1.0))


def steps_taken(xp: Any, ended: Any, lens: Any, step: Any, *, include_eos: bool) -> Any:
    """Return the number of steps of each hypothesis, of the shape of ``ended``.

    :param lens: where they have ended, without the step of the end, unless ``include_eos``
    :param step: number of steps so far
    """
    return xp.where(ended, lens + (0 if include_eos else 1), step)
