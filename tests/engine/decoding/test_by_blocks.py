"""Decoding while frames come: what comes out for all of them at once, and the best hypothesis on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from returnn_tf.config.errors import DataError
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.engine.decoding.decoder import Decoder
from returnn_tf.engine.decoding.greedy import GreedyDecoder
from returnn_tf.native.decoding.ctc_search import CtcDecoder, CtcSearch, ctc_library
from returnn_tf.ops.sequence.lexicon import WordLexicon
from tests.engine.decoding.small import random_scores
from tests.resident import needs_resident_memory, resident_memory

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


def _by_hand(scores: np.ndarray, beam: int) -> dict[tuple[int, ...], float]:
    """Return the labels of the last beam with their log sums: the search as it is defined, with nothing freed."""
    active = {(): (0.0, -np.inf)}  # labels: sums of the alignments that end with a blank, and with a label
    for frame in scores.astype("float64"):
        sums: dict[tuple[int, ...], list[float]] = {}

        def add(labels: tuple[int, ...], place: int, score: float, sums: Any = sums) -> None:
            entry = sums.setdefault(labels, [-np.inf, -np.inf])
            entry[place] = np.logaddexp(entry[place], score)

        for labels, (blank, last) in active.items():
            add(labels, 0, np.logaddexp(blank, last) + frame[BLANK])
            if labels:
                add(labels, 1, last + frame[labels[-1]])
            for label in range(BLANK):
                same = labels and labels[-1] == label
                add((*labels, label), 1, (blank if same else np.logaddexp(blank, last)) + frame[label])
        best = sorted(sums, key=lambda labels: -np.logaddexp(*sums[labels]))[:beam]
        active = {labels: (sums[labels][0], sums[labels][1]) for labels in best}
    return {labels: float(np.logaddexp(*both)) for labels, both in active.items()}


@pytest.mark.parametrize("scale", [0.5, 2.0], ids=["hypotheses differ early", "hypotheses differ late"])
def test_many_frames(scale: float) -> None:
    """What hypotheses have in common is stored once, and what none has is freed; the results are the same."""
    scores = random_scores(900, 4, scale=scale)
    decoder = BeamDecoder(4, BLANK, LABELS, BeamOptions(beam_size=5, beam_threshold=1e30, nbest=5))
    found, expected = decoder.decode(scores), _by_hand(scores, 5)
    assert {each.labels for each in found} == expected.keys() and len(found[0].labels) > 200
    for each in found:
        assert each.score == pytest.approx(expected[each.labels], rel=1e-6)


def test_many_words() -> None:
    """Words keep their labels, those among what all hypotheses have in common and those behind it."""
    decoder = _decoder("lexicon")
    path = [BLANK, *("abc".index(letter) for letter in "bcaabac" * 300)]
    separated = [label for each in path for label in (each, BLANK)]
    probs = np.full((len(separated), 4), 0.02)
    probs[np.arange(len(separated)), separated] = 0.94
    best = decoder.decode(np.log(probs).astype("float32"))[0]
    assert [label for label in separated if label != BLANK] == list(best.labels)
    for word, (begin, end) in zip(best.words, best.word_labels):
        assert word == "".join("abc"[label] for label in best.labels[begin:end])
    assert best.word_labels[0][0] == 0 and best.word_labels[-1][1] == len(best.labels)


@pytest.mark.slow
@needs_resident_memory
def test_memory_of_a_million_frames() -> None:
    """The search keeps a few bytes for each label that it has found, not the hypotheses of all frames."""
    sizes = {"num_labels": 4, "blank": BLANK, "separator": -1, "beam_size": 8, "labels_per_frame": 0}
    scales = {"beam_threshold": 50.0, "lm_scale": 0.0, "word_score": 0.0, "lm_of_labels": False}
    decoder = CtcDecoder(ctc_library(), {**sizes, **scales})
    search, block = CtcSearch(decoder), random_scores(10_000, 4, scale=2.0)
    search.advance(block)
    before = resident_memory()
    for _ in range(100):
        search.advance(block)
    assert resident_memory() - before < 32 << 20
    assert len(search.results(1, ended=True)[0].labels) > 400_000
