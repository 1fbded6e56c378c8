"""Hot words: words and phrases that are expected, each with a weight that its hypotheses get."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from returnn_tf.config.errors import CtcDataError
from returnn_tf.datasets.core.safe_files import read_text, wanted_by
from returnn_tf.engine.decoding.labels import DecodedLabels
from returnn_tf.engine.decoding.lexicon import WordLexicon
from returnn_tf.native.decoding.ctc_search import WeightedPhrases


@dataclass(frozen=True)
class HotPhrase:
    """A word, or words separated by blanks.

    :param weight: what is added to the log score where it is recognised
    :param where: file and line, or the setting, for errors
    """

    text: str
    weight: float
    where: str


def hot_phrases(given: Union[str, Mapping[str, Any], Sequence[str]], weight: float) -> list[HotPhrase]:
    """Return the phrases of a file, a dict with their weights, or a list.

    A line of a file is a phrase, behind it a tab and its weight or nothing.

    :param weight: of phrases without a weight of their own
    :raises DataError: the file is missing, or a weight is no number
    """
    if isinstance(given, Mapping):
        return [_phrase(text, value, "hot_words[%r]" % text) for text, value in given.items()]
    if not isinstance(given, str):
        return [_phrase(text, weight, "hot_words[%d]" % index) for index, text in enumerate(given)]
    with wanted_by("hot_words"):
        lines = read_text(given).split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        text, tab, own = line.rstrip("\r").partition("\t")
        if text.strip():
            found.append(_phrase(text, own if tab else weight, "%s, line %d" % (given, number)))
    return found


def _phrase(text: Any, weight: Any, where: str) -> HotPhrase:
    words = " ".join(str(text).split())
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if not words or not math.isfinite(number):
        raise CtcDataError(
            "Hot word %r (%s): %s. A line is a word or phrase, and behind a tab its weight."
            % (text, where, "its weight %r is no number" % weight if words else "it is empty")
        )
    return HotPhrase(words, number, where)


def weighted(
    phrases: Sequence[HotPhrase], labels: DecodedLabels, num_labels: int, lexicon: Optional[WordLexicon]
) -> Any:
    """Return the phrases as sequences of words of the lexicon, or of labels without one; None if there are none.

    Words that the lexicon lacks are added to it, if the vocabulary spells them.

    :raises DataError: a word can't be spelt
    """
    if not phrases:
        return None
    tokens: list[Sequence[int]] = []
    for phrase in phrases:
        if lexicon is None:
            spelt = labels.spell_phrase(phrase.text)
            if spelt is None:
                raise _unspelt(phrase, phrase.text, "the labels of the model can't spell it")
            tokens.append(spelt)
            continue
        words = []
        for word in phrase.text.split():
            own = None if word in lexicon else labels.spell(word)
            if own is not None:
                lexicon.add(word, own)
            if word not in lexicon:
                raise _unspelt(phrase, word, "the lexicon lacks it, and the labels of the model can't spell it")
            words.append(lexicon.index(word))
        tokens.append(words)
    begins, ends = (None, None) if lexicon is not None else labels.borders(num_labels)
    return WeightedPhrases(tokens, [phrase.weight for phrase in phrases], begins, ends)


def _unspelt(phrase: HotPhrase, word: str, reason: str) -> CtcDataError:
    return CtcDataError(
        "Hot word %r (%s): %s. Add it to the lexicon with its labels, or remove it." % (word, phrase.where, reason)
    )
