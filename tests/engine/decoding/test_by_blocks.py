"""Decoding while frames come: what comes out for all of them at once, and the best hypothesis on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from returnn_tf.config.errors import DataError
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.engine.decoding.decoder import Decoder
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.engine.decoding.lexicon import WordLexicon

LABELS = DecodedLabels(["a", "b", "c"])
BLANK = 3
KINDS = ["greedy", "beam", "lexicon"]


def _decoder(kind: str) -> Decoder:
    if kind == "greedy":
        return GreedyDecoder(4, BLANK)
    lexicon = None
    if kind == "lexicon":
        lexicon = WordLexicon(LABELS)
        for word in ("a", "ab", "bca", "c"):
            lexicon.add(word, LABELS.spell(word))
    return BeamDecoder(4, BLANK, LABELS, BeamOptions(beam_size=20, nbest=3), lexicon=lexicon)


def _scores(frames: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 2, (frames, 4))
    return (values - np.log(np.exp(values).sum(axis=1, keepdims=True))).astype("float32")


@pytest.mark.parametrize("sizes", [[1], [3, 1], [0, 5, 0, 2], [50]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_same_as_at_once(kind: str, sizes: Sequence[int]) -> None:
    """Labels, frames and scores; two sequences at the same time do not disturb each other."""
    decoder = _decoder(kind)
    for seed in range(3):
        scores, other = _scores(17, seed), decoder.begin()
        decoding, place, turn = decoder.begin(), 0, 0
        while place < len(scores):
            size = sizes[turn % len(sizes)]
            decoding.advance(scores[place : place + size])
            other.advance(scores[:1])
            place, turn = place + size, turn + 1
        found, expected = decoding.results(), decoder.decode(scores)
        assert [(each.labels, each.frames, each.words) for each in found] == [
            (each.labels, each.frames, each.words) for each in expected
        ]
        np.testing.assert_allclose([each.score for each in found], [each.score for each in expected], rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_best_on_the_way(kind: str) -> None:
    """Of a clear recording: the labels said so far, and words only once they are complete."""
    path = [0, 0, 3, 1, 3, 2, 2]
    decoding, seen = _decoder(kind).begin(), []
    for label in path:
        probs = np.full((1, 4), 1e-4)
        probs[0, label] = 1 - 3e-4
        decoding.advance(np.log(probs).astype("float32"))
        seen.append(decoding.best())
    assert ["".join("abc"[label] for label in labels) for labels, _ in seen] == [
        "a",
        "a",
        "a",
        "ab",
        "ab",
        "abc",
        "abc",
    ]
    if kind == "lexicon":
        assert tuple(seen[-1][1]) in (("ab", "c"), ("ab",)) and tuple(seen[0][1]) in (("a",), ())
    else:
        assert all(words is None for _, words in seen)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_at_all(kind: str) -> None:
    assert _decoder(kind).begin().results()[0].labels == ()


@pytest.mark.parametrize("kind", KINDS)
def test_bad_frames(kind: str) -> None:
    decoding = _decoder(kind).begin()
    decoding.advance(_scores(2, 1))
    with pytest.raises(DataError, match="NaN"):
        decoding.advance(np.full((1, 4), np.nan))
