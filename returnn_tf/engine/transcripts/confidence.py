"""Confidence of labels and words: their posterior in the beam, and the entropy of the distributions they come from.

* Posterior: ``c(w) = sum of p(h) over the hypotheses h that have w at this place``, with ``p(h)`` the softmax of the
  log scores of the beam (Wessel, Schlüter, Macherey and Ney 2001, "Confidence measures for large vocabulary
  continuous speech recognition": posteriors of N-best lists). The place is that in the alignment with the fewest
  errors to the best hypothesis, so that it exists without times.
* Entropy: ``c = 1 - H(p) / log N`` of a distribution p over N labels with the entropy ``H(p) = -sum p log p`` (Laptev
  and Ginsburg 2023, "Fast entropy-based methods of word-level confidence estimation": Gibbs entropy, linear
  normalisation); 1 if one label is certain, 0 if all are equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.engine.transcripts.edit_distance import align


def posteriors(scores: Sequence[float]) -> NDArray[np.float64]:
    """Return the probabilities of the hypotheses of a beam, [hypotheses].

    :param scores: log scores; if none is finite, all are equally likely
    """
    exact = np.asarray(scores, np.float64)
    if not np.isfinite(exact.max()):
        return np.full(len(exact), 1.0 / len(exact))
    weights = np.exp(exact - exact.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def posterior_confidence(hypotheses: Sequence[Sequence[str]], weights: NDArray[np.float64], of: int = 0) -> list[float]:
    """Return the posterior of each label or word of a hypothesis.

    :param hypotheses: labels or words of each, at least one
    :param weights: `posteriors` [hypotheses]
    :param of: the hypothesis
    """
    pivot = hypotheses[of]
    total = np.zeros(len(pivot))
    for other, weight in zip(hypotheses, weights):
        place = 0
        for mine, its in align(pivot, other):
            if mine is None:
                continue
            total[place] += weight if mine == its else 0.0
            place += 1
    return [float(value) for value in np.minimum(total, 1.0)]


def entropy_confidence(log_probs: NDArray[Any]) -> NDArray[np.float64]:
    """Return the confidence of distributions by their entropy, [...].

    :param log_probs: normalised, [..., labels]
    """
    exact = np.asarray(log_probs, np.float64)
    if exact.shape[-1] < 2:
        return np.ones(exact.shape[:-1])
    probs = np.exp(exact)
    entropy = -np.sum(np.where(probs > 0, probs * np.where(probs > 0, exact, 0.0), 0.0), axis=-1)
    result: NDArray[np.float64] = np.clip(1.0 - entropy / np.log(exact.shape[-1]), 0.0, 1.0)
    return result
