"""Lattices: the hypotheses of a beam as one acyclic automaton over words, with scores in two parts.

Hypotheses with the same first labels share the arcs of these, as in the search, where what follows depends on all
labels so far: so the paths of a lattice are the hypotheses of the beam and no others, each with its score. Of
hypotheses with the same labels, as a transducer has them, the one with the best score counts. Scores that are not known
label by label are at the end of their path. Hypotheses with a score of minus infinity are left out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.engine.transcripts.transcript import Hypothesis, Transcript

#: The part of a score that is that of the acoustic model; all others are the language model's.
ACOUSTIC = "acoustic"


@dataclass(frozen=True)
class ArcScores:
    """A log score in two parts.

    :param acoustic: of the acoustic model; of a model that is not divided, all of it
    :param lm: of the language model, and what is in no part
    """

    acoustic: float = 0.0
    lm: float = 0.0

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.acoustic + self.lm

    def __sub__(self, other: ArcScores) -> ArcScores:
        return ArcScores(self.acoustic - other.acoustic, self.lm - other.lm)

    def __add__(self, other: ArcScores) -> ArcScores:
        return ArcScores(self.acoustic + other.acoustic, self.lm + other.lm)


@dataclass(frozen=True)
class Arc:
    """A word between two states."""

    start: int
    end: int
    word: str
    scores: ArcScores


@dataclass(frozen=True)
class Lattice:
    """An automaton with the initial state 0.

    :param arcs: from lower to higher states
    :param finals: state -> scores of ending there
    :param times: of each state in seconds: the end of the word before it; None if unknown
    """

    arcs: Sequence[Arc]
    finals: dict[int, ArcScores]
    times: Sequence[Optional[float]]


def number(score: float) -> str:
    """Return a score as text, to 5 decimals: what is below is the noise of float32."""
    return "%.7g" % (round(score, 5) + 0.0)


def lattice_of(transcript: Transcript) -> Lattice:
    """Return the lattice of the hypotheses of a sequence."""
    possible = [each for each in transcript.hypotheses if each.score is None or math.isfinite(each.score)]
    states: dict[Hashable, int] = {(): 0}
    arcs: dict[int, Arc] = {}  # by the state where they end: each has one
    finals: dict[int, ArcScores] = {}
    times: list[Optional[float]] = [0.0]
    before: dict[int, ArcScores] = {0: ArcScores()}
    for hypothesis in possible:
        state = 0
        for place, (key, scores) in enumerate(_words(hypothesis)):
            following = states.setdefault(key, len(states))
            if following == len(times):
                word = hypothesis.words[place]
                arcs[following] = Arc(state, following, word.text, scores)
                before[following] = before[state] + scores
                times.append(word.end)
            state = following
        rest = _total(hypothesis) - before[state]
        if state not in finals or rest.total > finals[state].total:
            finals[state] = rest
    return Lattice(list(arcs.values()), finals, times)


def _words(hypothesis: Hypothesis) -> Iterator[tuple[Hashable, ArcScores]]:
    """Yield for each word what tells its state from others, the labels so far, and the scores of its own labels."""
    done = 0
    words: tuple[str, ...] = ()
    for place, word in enumerate(hypothesis.words):
        words = (*words, word.text)
        if not hypothesis.word_labels:
            yield words, ArcScores()
            continue
        past = hypothesis.word_labels[place][1]
        labels = tuple(label.text for label in hypothesis.labels[:past])
        yield (labels, words), _of_labels(hypothesis, done, past)
        done = max(done, past)


def _of_labels(hypothesis: Hypothesis, first: int, past: int) -> ArcScores:
    """Return the scores of labels, as far as they are known."""
    parts = {name: sum(values[first:past]) for name, values in hypothesis.label_parts.items()}
    return ArcScores(parts.pop(ACOUSTIC, 0.0), sum(parts.values()))


def _total(hypothesis: Hypothesis) -> ArcScores:
    total = 0.0 if hypothesis.score is None else hypothesis.score
    acoustic = hypothesis.parts.get(ACOUSTIC, 0.0 if hypothesis.parts else total)
    return ArcScores(acoustic, total - acoustic)
