"""Hot words for the decoder of scores per frame: as words of its lexicon, or as labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.errors import CtcDataError
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.datasets.vocabulary.hot_words import HotPhrase, check_equal, spelt
from returnn_tf.native.decoding.ctc_search import WeightedPhrases
from returnn_tf.ops.sequence.lexicon import WordLexicon


def weighted(
    phrases: Sequence[HotPhrase], labels: DecodedLabels, num_labels: int, lexicon: Optional[WordLexicon]
) -> Any:
    """Return the phrases as sequences of words of the lexicon, or of labels without one; None if there are none.

    Words that the lexicon lacks are added to it, if the vocabulary spells them.

    :raises DataError: a word can't be spelt, or a phrase has two weights
    """
    if not phrases:
        return None
    tokens: list[Sequence[int]] = []
    for phrase in phrases:
        if lexicon is None:
            tokens.append(spelt(phrase, labels))
            continue
        words = []
        for word in phrase.text.split():
            own = None if word in lexicon else labels.spell(word)
            if own is not None:
                lexicon.add(word, own)
            if word not in lexicon:
                raise CtcDataError(
                    "Hot word %r (%s): the lexicon lacks it, and the labels of the model can't spell it. Add it to the "
                    "lexicon with its labels, or remove it." % (word, phrase.where)
                )
            words.append(lexicon.index(word))
        tokens.append(words)
    check_equal(phrases, tokens)
    begins, ends = (None, None) if lexicon is not None else labels.borders(num_labels)
    return WeightedPhrases(tokens, [phrase.weight for phrase in phrases], begins, ends)
