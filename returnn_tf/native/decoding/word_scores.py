"""Native scores of the labels that may follow in a search: a lexicon and an n-gram model, as an op for graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.native.decoding.ctc_search import Spellings, ctc_ops, joined_words
from returnn_tf.util.lazy_tf import tf

#: The fields of `WordScores` that may be tensors.
SCALES = ("lm_scale", "word_score", "unknown_score")


@dataclass(frozen=True)
class ScoredTokens:
    """An n-gram model for an op, and what it scores.

    :param name: by which the library knows the model: in an exported graph, that of a file beside the library
    :param order: of the model
    :param of_labels: whether it scores labels, also if there is a lexicon
    :param tokens: the names of the labels, or the words of the lexicon
    """

    name: str
    order: int
    of_labels: bool
    tokens: Sequence[str]


@dataclass(frozen=True, eq=False)
class WordScores:
    """What each label that may follow adds to the scores of hypotheses.

    :param blank: a label that changes nothing
    :param end_label: ends a sequence
    :param separator: may stand between words, and is in none
    :param readings: ways to divide labels into words that are kept, the best ones
    :param lexicon: None: any labels may follow
    """

    num_labels: int
    blank: Optional[int] = None
    end_label: Optional[int] = None
    separator: Optional[int] = None
    readings: int = 1
    lm_scale: float = 0.0
    word_score: float = 0.0
    unknown_score: float = 0.0
    lexicon: Optional[Spellings] = None

    def state_size(self, order: int) -> int:
        """Return the number of integers in the state of a hypothesis, zeros before the first label.

        These are the last label, and of each reading: node of the lexicon, score, and the words of the model with their
        back-off weights.

        :param order: of the model, 1 without one
        """
        return 1 + self.readings * (3 + 2 * (order - 1))

    def step(
        self, model: Optional[ScoredTokens], labels: tf.Tensor, last: tf.Tensor, before: tf.Tensor, **scales: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the states after the last labels, [hypotheses, state_size], and the scores, [hypotheses, labels].

        :param labels: int32 [hypotheses], those that came last; not used with a state of zeros
        :param last: bool [hypotheses], whether the next label is the last one
        :param before: int32 [hypotheses, state_size], the states before ``labels``
        :param scales: float32 scalars in place of `SCALES`, which change from search to search
        :raises NativeOpError: the library can't be built
        """
        lexicon = self.lexicon
        options = {"blank": self.blank, "end_label": self.end_label, "separator": self.separator}
        result = ctc_ops().rtf_word_scores(
            labels,
            last,
            before,
            tf.stack([scales.get(name, getattr(self, name)) for name in SCALES]),
            num_labels=self.num_labels,
            readings=self.readings,
            offsets=b"" if lexicon is None else lexicon.offsets.tobytes(),
            spellings=b"" if lexicon is None else lexicon.labels.tobytes(),
            words=b"" if lexicon is None else lexicon.words.tobytes(),
            file="" if model is None else model.name,
            tokens=b"" if model is None else joined_words(model.tokens),
            lm_of_labels=model is not None and model.of_labels,
            **{name: -1 if label is None else label for name, label in options.items()},
        )
        return result.after, result.scores
