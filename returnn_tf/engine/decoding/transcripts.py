"""Transcripts of what was decoded: labels and words with times and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.decoder import Decoded
from returnn_tf.engine.transcripts.confidence import POOLED, POSTERIOR, Confidence, entropy_confidence
from returnn_tf.engine.transcripts.timed import timed_labels
from returnn_tf.engine.transcripts.transcript import Hypothesis
from returnn_tf.engine.transcripts.words import words_of

_DEFAULT = Confidence()


def hypotheses_of(
    decoded: Sequence[Decoded],
    labels: DecodedLabels,
    log_probs: NDArray[Any],
    seconds: Optional[float],
    step: Optional[float] = None,
    *,
    confidence: Confidence = _DEFAULT,
    nbest: Optional[int] = None,
) -> tuple[Hypothesis, ...]:
    """Return hypotheses of a decoder with the times and confidence of their labels and words.

    The confidence of a label is its highest probability in one of its frames; by entropy, the lowest of its frames;
    that of a word is the lowest of its labels. Of several hypotheses it is pooled with the posterior among them, or
    that alone, as it is with a language model: the words are then not chosen by these probabilities.

    :param log_probs: what was decoded, [frames, labels]
    :param seconds: of the audio; None: there are no times
    :param step: seconds of a frame; None: all frames together are as long as the audio
    :param nbest: hypotheses that are returned, though the confidence is that among all; default: all. The others need
        no frames
    """
    if step is None and seconds is not None and len(log_probs):
        step = seconds / len(log_probs)
    entropies = entropy_confidence(log_probs) if confidence.by_entropy else None
    found = []
    for entry in decoded:
        names = [labels.name(label) for label in entry.labels]
        if entry.frames is None:
            pieces = timed_labels(names, None, None, None)
        else:
            sure = [
                float(np.exp(log_probs[first:past, label]).max())
                if entropies is None
                else float(entropies[first:past].min())
                for label, (first, past) in zip(entry.labels, entry.frames)
            ]
            pieces = timed_labels(names, entry.frames, step, seconds, sure)
        spans = _spans(entry, labels, names)
        of_labels = entry.word_labels or tuple((first, past) for _, first, past in spans)
        found.append(Hypothesis(pieces, words_of(spans, pieces), entry.score, entry.parts, word_labels=of_labels))
    if confidence.by_entropy or len(found) == 1:
        return tuple(found[:nbest])
    if confidence.kind == POOLED and "lm" in decoded[0].parts:
        confidence = replace(confidence, kind=POSTERIOR)
    return _in_beam(found, confidence, nbest)


def _spans(entry: Decoded, labels: DecodedLabels, names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the words of a hypothesis, with their labels; a space after a word is not its label.

    :param names: of its labels
    """
    if entry.words is None or entry.word_labels is None:
        return labels.spelling.spans(names)
    spans = []
    for word, (first, past) in zip(entry.words, entry.word_labels):
        is_space = past - first > 1 and entry.labels[past - 1] == labels.space
        spans.append((word, first, past - is_space))
    return spans


def _in_beam(found: Sequence[Hypothesis], confidence: Confidence, nbest: Optional[int]) -> tuple[Hypothesis, ...]:
    scores = [hypothesis.score or 0.0 for hypothesis in found]
    labels, words = [entry.labels for entry in found], [entry.words for entry in found]
    return tuple(
        replace(
            entry,
            labels=confidence.in_beam(labels, scores, place),
            words=confidence.in_beam(words, scores, place),
        )
        for place, entry in enumerate(found[:nbest])
    )
