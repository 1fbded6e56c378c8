"""Hypotheses of decoders with the confidence of their labels and words."""

import dataclasses

import numpy as np
import pytest

from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.decoder import Decoded
from returnn_tf.engine.decoding.transcripts import hypotheses_of
from returnn_tf.engine.transcripts.confidence import Confidence

LABELS = DecodedLabels(["a", "b", " "])
#: "ab" and "bb" with one frame for each label.
LOG_PROBS = np.log(np.array([[0.6, 0.3, 0.05, 0.05], [0.04, 0.9, 0.01, 0.05]], "float32"))


def confidence(kind, *, hypotheses=2, **parts):
    """Return that of the labels of the best hypothesis, which has 3/4 of the probability, and of its word."""
    scores = [np.log(3.0), 0.0][:hypotheses]
    found = [Decoded(labels, ((0, 1), (1, 2)), score, parts) for labels, score in zip([(0, 1), (1, 1)], scores)]
    best, *_ = hypotheses_of(found, LABELS, LOG_PROBS, None, confidence=Confidence(kind, 1.0))
    return [piece.confidence for piece in (*best.labels, *best.words)]


@pytest.mark.parametrize(
    "kind, parts, expected",
    [
        ("posterior", {}, [0.75, 1.0, 0.75]),
        ("pooled", {}, [np.sqrt(0.75 * 0.6), np.sqrt(0.9), np.sqrt(0.75 * 0.6)]),
        ("pooled", {"acoustic": -1.0, "hot_words": 2.0}, [np.sqrt(0.75 * 0.6), np.sqrt(0.9), np.sqrt(0.75 * 0.6)]),
        ("pooled", {"acoustic": -1.0, "lm": -2.0}, [0.75, 1.0, 0.75]),
    ],
)
def test_of_several_hypotheses(kind, parts, expected):
    np.testing.assert_allclose(confidence(kind, **parts), expected, rtol=1e-5)


def test_hypotheses_that_are_not_returned_count():
    found = [Decoded(labels, ((0, 1), (1, 2)), score, {}) for labels, score in (((0, 1), np.log(3.0)), ((1, 1), 0.0))]
    options = {"confidence": Confidence("posterior", 1.0)}
    every = hypotheses_of(found, LABELS, LOG_PROBS, None, **options)
    found[1] = dataclasses.replace(found[1], frames=None)
    assert hypotheses_of(found, LABELS, LOG_PROBS, None, nbest=1, **options) == every[:1]
    assert every[0].labels[0].confidence == pytest.approx(0.75) and len(every) == 2


@pytest.mark.parametrize("kind", ["posterior", "pooled"])
def test_a_single_hypothesis_has_the_probabilities_of_its_labels(kind):
    np.testing.assert_allclose(confidence(kind, hypotheses=1), [0.6, 0.9, 0.6], rtol=1e-5)
