"""Hot words: words and phrases that are expected, each with a weight that its hypotheses get."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from returnn_tf.config.errors import CtcDataError
from returnn_tf.datasets.core.safe_files import read_text, wanted_by
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels


@dataclass(frozen=True)
class HotPhrase:
    """A word, or words separated by blanks.

    :param weight: what is added to the log score where it is recognised
    :param where: file and line, or the setting, for errors
    """

    text: str
    weight: float
    where: str


def hot_phrases(
    given: Union[str, Mapping[str, Any], Sequence[str]], weight: float, where: str = "hot_words"
) -> list[HotPhrase]:
    """Return the phrases of a file, a dict with their weights, or a list.

    A line of a file is a phrase, behind it a tab and its weight or nothing.

    :param weight: of phrases without a weight of their own
    :param where: the option, for errors
    :raises DataError: the file is missing, or a weight is no number
    """
    if isinstance(given, Mapping):
        return [_phrase(text, value, "%s[%r]" % (where, text)) for text, value in given.items()]
    if not isinstance(given, str):
        return [_phrase(text, weight, "%s[%d]" % (where, index)) for index, text in enumerate(given)]
    with wanted_by(where):
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


def check_equal(phrases: Sequence[HotPhrase], tokens: Sequence[Sequence[int]]) -> None:
    """Check that a phrase which is there twice has one weight.

    :param tokens: of each phrase: its labels, or words of a lexicon
    :raises DataError: it has two
    """
    first: dict[tuple[int, ...], HotPhrase] = {}
    for phrase, own in zip(phrases, tokens):
        other = first.setdefault(tuple(own), phrase)
        if other.weight != phrase.weight:
            same = "" if other.text == phrase.text else " as %r, which is the same to the model," % other.text
            raise CtcDataError(
                "Hot word %r (%s) has the weight %g, but%s %g in %s. Remove one of them."
                % (phrase.text, phrase.where, phrase.weight, same, other.weight, other.where)
            )


def spelt(phrase: HotPhrase, labels: DecodedLabels) -> tuple[int, ...]:
    """Return the labels of a phrase.

    :raises DataError: the labels can't spell it
    """
    found = labels.spell_phrase(phrase.text)
    if found is None:
        unspelt = next(word for word in phrase.text.split() if labels.spell(word) is None)
        word = "" if unspelt == phrase.text else " %r of" % unspelt
        raise CtcDataError(
            "Hot word %r (%s): the labels of the model can't spell%s it. Remove it, or correct its characters and case."
            % (phrase.text, phrase.where, word)
        )
    return found
