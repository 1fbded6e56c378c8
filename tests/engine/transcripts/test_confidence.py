"""Posteriors of hypotheses in a beam, and confidence by entropy."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.engine.transcripts.confidence import (
    Confidence,
    entropy_confidence,
    posterior_confidence,
    posteriors,
)
from returnn_tf.engine.transcripts.transcript import Piece


def test_posteriors_are_normalised_without_overflow():
    np.testing.assert_allclose(posteriors([-1000.0, -1000.0 + np.log(3.0)]), [0.25, 0.75])
    np.testing.assert_allclose(posteriors([-3.0, -np.inf]), [1.0, 0.0])
    np.testing.assert_allclose(posteriors([-np.inf, -np.inf]), [0.5, 0.5])  # nothing is known


def test_a_lower_scale_makes_posteriors_less_sure():
    np.testing.assert_allclose(posteriors([0.0, 2 * np.log(3.0)], 0.5), [0.25, 0.75])


@pytest.mark.parametrize("kind, expected", [("pooled", [0.3, 0.75]), ("posterior", [0.75, 0.75])])
def test_the_confidence_of_pieces_is_pooled_with_their_posterior(kind, expected):
    """The second piece has none of its own."""
    best = (Piece("a", 0.0, 1.0, 0.12), Piece("b"))
    other = (Piece("x", 0.0, 1.0, 1.0), Piece("c", 0.0, 1.0, 1.0))
    found = Confidence(kind, 1.0).in_beam([best, other], [np.log(3.0), 0.0])
    np.testing.assert_allclose([piece.confidence for piece in found], expected)
    assert [(piece.text, piece.end) for piece in found] == [("a", 1.0), ("b", None)]


def test_posterior_is_the_mass_of_the_hypotheses_with_the_word_at_its_place():
    hypotheses = [["a", "b", "c"], ["a", "x", "c"], ["b", "c"], ["a", "b"]]
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(posterior_confidence(hypotheses, weights), [0.8, 0.7, 0.9])
    np.testing.assert_allclose(posterior_confidence(hypotheses, weights, of=1), [0.8, 0.3, 0.9])


def test_an_insertion_elsewhere_does_not_lower_the_confidence():
    assert posterior_confidence([["a", "b"], ["a", "x", "b"]], np.array([0.5, 0.5])) == [1.0, 1.0]
    assert posterior_confidence([[], ["a"]], np.array([0.5, 0.5])) == []


@pytest.mark.parametrize("size", [1, 2, 10])
def test_entropy(size):
    certain = np.full([size], -np.inf)
    certain[0] = 0.0
    equal = np.full([size], -np.log(size))
    expected = [1.0, 0.0 if size > 1 else 1.0]
    np.testing.assert_allclose(entropy_confidence(np.stack([certain, equal])), expected, atol=1e-12)


def test_entropy_of_two_of_four():
    probs = np.array([[0.5, 0.5, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(entropy_confidence(np.log(probs)), [0.5])
