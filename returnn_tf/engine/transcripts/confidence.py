"""Confidence of labels and words: their posterior in the beam, and what the distributions tell that they come from.

* Posterior: ``c(w) = sum of p(h) over the hypotheses h that have w at this place``, with ``p(h)`` the softmax of the
  scaled log scores of the beam (Wessel, Schlüter, Macherey and Ney 2001, "Confidence measures for large vocabulary
  continuous speech recognition": posteriors of N-best lists). The place is that in the alignment with the fewest
  errors to the best hypothesis, so that it exists without times.
* Pooled: ``sqrt(c(w) * p(w))`` with the posterior c and the lowest probability p that one of the labels of w has in the
  distribution from which it was chosen: a logarithmic opinion pool (Heskes 1997) with equal weights. The posterior
  knows what comes later, but not what the beam lacks: where all hypotheses of a small beam agree it is 1. For p it is
  the other way round.
* Entropy: ``c = 1 - H(p) / log N`` of a distribution p over N labels with the entropy ``H(p) = -sum p log p`` (Laptev
  and Ginsburg 2023, "Fast entropy-based methods of word-level confidence estimation": Gibbs entropy, linear
  normalisation); 1 if one label is certain, 0 if all are equally likely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.engine.transcripts.edit_distance import align
from returnn_tf.engine.transcripts.transcript import Piece

#: Kinds of confidence.
POOLED, POSTERIOR, ENTROPY = "pooled", "posterior", "entropy"


@dataclass(frozen=True)
class Confidence:
    """How the confidence of labels and words is computed.

    :param kind: "pooled", "posterior" or "entropy"
    :param scale: of the log scores, for posteriors; below 1 they are less sure
    """

    kind: str = POOLED
    scale: float = 0.5

    @property
    def by_entropy(self) -> bool:
        """Return whether no posteriors are needed."""
        return self.kind == ENTROPY

    def in_beam(self, hypotheses: Sequence[Sequence[Piece]], scores: Sequence[float], of: int = 0) -> tuple[Piece, ...]:
        """Return the labels or words of a hypothesis with their confidence in the beam.

        :param hypotheses: labels or words of each; the confidence that they have is pooled with the posterior
        :param scores: log scores
        :param of: the hypothesis
        """
        texts = [[piece.text for piece in pieces] for pieces in hypotheses]
        found = posterior_confidence(texts, posteriors(scores, self.scale), of)
        own = [piece.confidence if self.kind == POOLED else None for piece in hypotheses[of]]
        pooled = [value if known is None else math.sqrt(value * known) for value, known in zip(found, own)]
        return tuple(replace(piece, confidence=value) for piece, value in zip(hypotheses[of], pooled))


def posteriors(scores: Sequence[float], scale: float = 1.0) -> NDArray[np.float64]:
    """Return the probabilities of the hypotheses of a beam, [hypotheses].

    :param scores: log scores; if none is finite, all are equally likely
    :param scale: of the scores
    """
    exact = scale * np.asarray(scores, np.float64)
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
