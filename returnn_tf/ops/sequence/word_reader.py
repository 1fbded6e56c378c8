"""The words of labels, as a search with a lexicon and an n-gram model has scored them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from returnn_tf.native.decoding.ctc_search import CtcDecoder, ctc_library, label_words
from returnn_tf.native.decoding.word_scores import WordScores
from returnn_tf.ops.sequence.lexicon import WordLexicon
from returnn_tf.ops.sequence.ngram_file import PlannedNGram


class WordReader:
    """Divides labels into words: of all ways, and of words that sound alike, those with the best score.

    :param scores: of the search
    :param model: the language model of the search
    :raises NativeOpError: the library can't be built
    """

    def __init__(self, lexicon: WordLexicon, scores: WordScores, model: Optional[PlannedNGram]) -> None:
        self._lexicon, self._scores = lexicon, scores
        options = {
            "num_labels": scores.num_labels,
            "blank": -1 if scores.blank is None else scores.blank,
            "separator": -1 if scores.separator is None else scores.separator,
            "lm_scale": scores.lm_scale,
            "word_score": scores.word_score,
            "unknown_score": scores.unknown_score,
            "lm_of_labels": model is not None and model.of_labels,
        }
        given = (None, None) if model is None else model.for_decoder()
        self._decoder = CtcDecoder(ctc_library(), options, lexicon.spellings(), *given)

    @property
    def words(self) -> Sequence[str]:
        """Return all words of the lexicon."""
        return self._lexicon.words

    def __call__(self, labels: Sequence[int]) -> list[tuple[str, int, int]]:
        """Return the words with their first label and the one past the last; a space after a word is not its label.

        A word that is not complete at the end is left out, as is what follows the label that ends a sequence.

        :param labels: with blanks, or without them
        """
        end, space = self._scores.end_label, self._lexicon.labels.space
        labels = list(labels)
        labels = labels[: labels.index(end)] if end in labels else labels
        found = []
        for word, first, past in label_words(self._decoder, self._scores.readings, end, labels):
            if past - first > 1 and labels[past - 1] == space:
                past -= 1
            found.append((self._lexicon.words[word], first, past))
        return found
