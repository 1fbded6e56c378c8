"""What was recognised in a sequence: hypotheses of labels and words, with times, confidence and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional


@dataclass(frozen=True)
class Piece:
    """A label or a word.

    :param text: as it is written
    :param start: its begin, in seconds from the begin of the audio; None if unknown
    :param end: its end, later than the start
    :param confidence: from 0 to 1; None if unknown
    """

    text: str
    start: Optional[float] = None
    end: Optional[float] = None
    confidence: Optional[float] = None


@dataclass(frozen=True)
class Hypothesis:
    """A sequence of labels, in order and without overlap, and the words that they make up.

    :param labels: without those that only end the search
    :param words: see `returnn_tf.engine.transcripts.words`
    :param score: log score, all parts weighted and summed; None if nothing was searched
    :param parts: the score in parts, e.g. ``{"acoustic": -3.5, "lm": -1.2}``; empty if it is not split
    :param label_parts: the same by label, [labels] for each part, with one more number for the label that ends the
        search, if there is one; empty if unknown
    :param word_labels: of each word: its first label, and the one past its last; empty if unknown
    """

    labels: tuple[Piece, ...]
    words: tuple[Piece, ...]
    score: Optional[float] = None
    parts: Mapping[str, float] = field(default_factory=dict)
    label_parts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    word_labels: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Transcript:
    """The hypotheses for one sequence.

    :param tag: name of the sequence
    :param hypotheses: best first, at least one
    :param duration: of the audio, in seconds; None if unknown
    """

    tag: str
    hypotheses: tuple[Hypothesis, ...]
    duration: Optional[float] = None

    @property
    def best(self) -> Hypothesis:
        """Return the best hypothesis."""
        return self.hypotheses[0]


def text(hypothesis: Hypothesis) -> str:
    """Return the words, separated by blanks."""
    return " ".join(word.text for word in hypothesis.words)
