"""Prefix beam search, with a lexicon, an n-gram model and hot words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.datasets.vocabulary.hot_words import HotPhrase
from returnn_tf.engine.decoding.decoder import Decoded, Decoder, Decoding
from returnn_tf.engine.decoding.hot_words import weighted
from returnn_tf.native.decoding.ctc_search import CtcDecoder, CtcSearch, FoundLabels, align, ctc_library
from returnn_tf.ops.sequence.lexicon import WordLexicon
from returnn_tf.ops.sequence.ngram_file import NGramFile

#: The lowest log score of a label in a frame: labels of probability 0 can't end all hypotheses.
_LOWEST = -100.0


@dataclass(frozen=True)
class BeamOptions:
    """Sizes and scales of a search.

    :param beam_size: hypotheses that are kept
    :param beam_threshold: hypotheses with a log score so far below that of the best are left out
    :param labels_per_frame: the best labels of a frame which may follow; 0: all
    :param lm_scale: factor of the log probabilities of the language model
    :param word_score: added for each word, without a lexicon for each label
    :param unknown_score: added for each word that the language model lacks, of a model of labels for each label
    :param loop_score: added for each further frame of a label
    :param forward_score: added for each label
    :param prior_scale: factor of the log priors, which are subtracted from the log posteriors
    :param blank_scale: factor of the probability of the blank
    :param nbest: hypotheses that are returned
    :param aligned: those whose labels get their frames, which takes longer than the search where audio is long; None:
        all
    """

    beam_size: int = 100
    beam_threshold: float = 25.0
    labels_per_frame: int = 40
    lm_scale: float = 0.5
    word_score: float = 0.0
    unknown_score: float = 0.0
    loop_score: float = 0.0
    forward_score: float = 0.0
    prior_scale: float = 0.3
    blank_scale: float = 1.0
    nbest: int = 1
    aligned: Optional[int] = None


class BeamDecoder(Decoder):
    """Searches for the sequence with the highest score: the sum over all alignments, the language model, hot words.

    :param num_labels: with the blank
    :param blank: its index; None: a label takes any number of frames, as a state of an HMM
    :param labels: their names
    :param lexicon: the words that may be recognised; None: any sequence of labels
    :param log_priors: [labels]
    :raises ConfigError: a language model of words without a lexicon
    :raises DataError: the language model or the hot words do not fit
    :raises NativeOpError: the library can't be built
    """

    def __init__(
        self,
        num_labels: int,
        blank: Optional[int],
        labels: DecodedLabels,
        options: BeamOptions,
        *,
        lexicon: Optional[WordLexicon] = None,
        lm: Optional[NGramFile] = None,
        hot_words: Sequence[HotPhrase] = (),
        log_priors: Optional[NDArray[Any]] = None,
    ) -> None:
        super().__init__(num_labels, blank)
        self._library = ctc_library()
        self._blank = -1 if blank is None else blank
        self.labels = labels
        self._lexicon, self._lm, self._log_priors = lexicon, lm, log_priors
        self._phrases = weighted(hot_words, labels, num_labels, lexicon)
        self._spellings = None if lexicon is None else lexicon.spellings()
        self._lm_indices = None if lm is None else lm.indices(labels, num_labels, lexicon)
        self.set_options(options)

    @property
    def idle_options(self) -> dict[str, str]:
        """Return the scales that have no effect, and why."""
        found = {
            "lm_scale": "without decode_lm" if self._lm is None else "",
            "unknown_score": "without decode_lm" if self._lm is None else "",
            "prior_scale": "without decode_priors" if self._log_priors is None else "",
            "blank_scale": "as there is no blank" if self._blank < 0 else "",
        }
        return {name: reason for name, reason in found.items() if reason}

    def set_options(self, options: BeamOptions) -> None:
        """Change sizes and scales; not while a sequence is decoded."""
        self.options = options
        given = {
            name: value
            for name, value in asdict(options).items()
            if name not in ("prior_scale", "blank_scale", "nbest", "aligned")
        }
        separator = self.labels.separator
        self._decoder = CtcDecoder(
            self._library,
            {
                **given,
                "num_labels": self.num_labels,
                "blank": self._blank,
                "separator": -1 if separator is None else separator,
                "lm_of_labels": self._lm is not None and self._lm.of_labels,
            },
            self._spellings,
            None if self._lm is None else self._lm.model,
            self._lm_indices,
            self._phrases,
        )
        self._shift = np.zeros(self.num_labels, "float32")
        if self._log_priors is not None:
            self._shift -= options.prior_scale * np.maximum(self._log_priors, _LOWEST).astype("float32")
        if self._blank >= 0:
            self._shift[self._blank] += math.log(options.blank_scale)

    def begin(self) -> Decoding:
        """Begin a sequence.

        There will be at most ``nbest`` hypotheses; only if all end within a word, those, without this word.
        """
        return _BeamSearch(self, CtcSearch(self._decoder))

    def scores(self, log_probs: NDArray[Any]) -> NDArray[np.float32]:
        """Return log posteriors without priors, with the scale of the blank, [frames, labels].

        :raises DataError: see `checked`
        """
        scores: NDArray[np.float32] = np.maximum(self.checked(log_probs), _LOWEST) + self._shift
        return scores

    def words(self, found: FoundLabels) -> Optional[tuple[str, ...]]:
        """Return the words of a hypothesis; None without a lexicon."""
        return None if self._lexicon is None else tuple(self._lexicon.words[index] for index in found.words)

    def decoded(self, found: FoundLabels, scores: Optional[NDArray[np.float32]]) -> Decoded:
        """Return a hypothesis.

        :param scores: of all frames, see `scores`, for the frames of its labels; None: these are not wanted
        """
        parts = {"acoustic": found.acoustic}
        parts.update({"lm": found.lm} if self._lm is not None else {})
        parts.update({"words": found.word} if self.options.word_score or self.options.unknown_score else {})
        parts.update({"hot_words": found.phrase} if self._phrases is not None else {})
        frames = None
        if scores is not None:
            aligned = align(self._decoder, scores, found.labels)
            assert aligned is not None  # the search has found an alignment
            frames = tuple(aligned)
        words = self.words(found)
        spans = None if words is None else found.word_spans
        return Decoded(found.labels, frames, found.score, parts, words, spans)


class _BeamSearch(Decoding):
    """A search, with the scores so far, which the times of labels follow from."""

    def __init__(self, decoder: BeamDecoder, search: CtcSearch) -> None:
        self._decoder, self._search = decoder, search
        self._scores: list[NDArray[np.float32]] = []

    def advance(self, log_probs: NDArray[Any]) -> None:
        scores = self._decoder.scores(log_probs)
        self._search.advance(scores)
        self._scores.append(scores)

    def best(self) -> tuple[Sequence[int], Optional[Sequence[str]]]:
        (found,) = self._search.results(1, ended=False)
        return found.labels, self._decoder.words(found)

    def results(self) -> list[Decoded]:
        scores = self._scores or [np.zeros((0, self._decoder.num_labels), np.float32)]
        joined = scores[0] if len(scores) == 1 else np.concatenate(scores)
        options = self._decoder.options
        found = self._search.results(options.nbest, ended=True)
        aligned = len(found) if options.aligned is None else options.aligned
        return [self._decoder.decoded(each, joined if place < aligned else None) for place, each in enumerate(found)]
