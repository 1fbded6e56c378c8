"""Transcripts of what was decoded: labels and words with times and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.decoder import Decoded
from returnn_tf.engine.transcripts.confidence import entropy_confidence, posterior_confidence, posteriors
from returnn_tf.engine.transcripts.timed import timed_labels
from returnn_tf.engine.transcripts.transcript import Hypothesis, Piece
from returnn_tf.engine.transcripts.words import words_of


def hypotheses_of(
    decoded: Sequence[Decoded],
    labels: DecodedLabels,
    log_probs: NDArray[Any],
    seconds: Optional[float],
    step: Optional[float] = None,
    *,
    by_entropy: bool = False,
) -> tuple[Hypothesis, ...]:
    """Return hypotheses of a decoder with the times and confidence of their labels and words.

    The confidence is the posterior among the hypotheses. Of a single one, that of a label is its highest probability in
    one of its frames; by entropy, the lowest of its frames; then that of a word is the lowest of its labels.

    :param log_probs: what was decoded, [frames, labels]
    :param seconds: of the audio; None: there are no times
    :param step: seconds of a frame; None: all frames together are as long as the audio
    """
    if step is None and seconds is not None and len(log_probs):
        step = seconds / len(log_probs)
    entropies = entropy_confidence(log_probs) if by_entropy else None
    found = []
    for entry in decoded:
        sure = [
            float(np.exp(log_probs[first:past, label]).max())
            if entropies is None
            else float(entropies[first:past].min())
            for label, (first, past) in zip(entry.labels, entry.frames)
        ]
        names = [labels.name(label) for label in entry.labels]
        pieces = timed_labels(names, entry.frames, step, seconds, sure)
        spans = entry.word_labels
        if entry.words is None or spans is None:
            spans = tuple((first, past) for _, first, past in labels.spelling.spans(names))
        words = _words(entry, labels, pieces)
        found.append(Hypothesis(pieces, words, entry.score, entry.parts, word_labels=spans))
    return tuple(found) if by_entropy or len(found) == 1 else _with_posteriors(found)


def _words(entry: Decoded, labels: DecodedLabels, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    if entry.words is None or entry.word_labels is None:
        return words_of(labels.spelling, pieces)
    words = []
    for word, (first, past) in zip(entry.words, entry.word_labels):
        if past - first > 1 and entry.labels[past - 1] == labels.space:
            past -= 1
        own = pieces[first:past]
        words.append(Piece(word, own[0].start, own[-1].end, min(piece.confidence or 0.0 for piece in own)))
    return tuple(words)


def _with_posteriors(found: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    weights = posteriors([hypothesis.score or 0.0 for hypothesis in found])
    by_labels = [[piece.text for piece in hypothesis.labels] for hypothesis in found]
    by_words = [[piece.text for piece in hypothesis.words] for hypothesis in found]

    def sure(pieces: Sequence[Piece], of_all: Sequence[Sequence[str]], place: int) -> tuple[Piece, ...]:
        values = posterior_confidence(of_all, weights, place)
        return tuple(replace(piece, confidence=value) for piece, value in zip(pieces, values))

    return tuple(
        replace(entry, labels=sure(entry.labels, by_labels, place), words=sure(entry.words, by_words, place))
        for place, entry in enumerate(found)
    )
