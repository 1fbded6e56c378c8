"""Lexicons: the words that may be recognised, each with its sequences of labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from returnn_tf.config.errors import CtcDataError, did_you_mean
from returnn_tf.datasets.core.safe_files import read_text, wanted_by
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.logging.text import counted
from returnn_tf.native.decoding.ctc_search import Spellings

_SHOWN = 3
_MOST_COMPARED = 2000  # comparing spellings takes long


class WordLexicon:
    """Words and their spellings; words are numbered in the order in which they came.

    :param labels: of the model
    """

    def __init__(self, labels: DecodedLabels) -> None:
        self.labels = labels
        self.words: list[str] = []
        #: Whether the vocabulary has split some of the words, rather than that the file has their labels.
        self.is_spelt = False
        self._index: dict[str, int] = {}
        self._spellings: list[tuple[int, tuple[int, ...]]] = []

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def index(self, word: str) -> int:
        """Return the number of a word that it has."""
        return self._index[word]

    def add(self, word: str, labels: Sequence[int]) -> int:
        """Add a spelling of a word, at least one label; return the number of the word."""
        index = self._index.setdefault(word, len(self.words))
        if index == len(self.words):
            self.words.append(word)
        self._spellings.append((index, self.labels.completed(labels)))
        return index

    def spellings(self) -> Spellings:
        """Return the words and spellings as arrays."""
        sizes = [len(labels) for _, labels in self._spellings]
        return Spellings(
            np.cumsum([0, *sizes], dtype=np.int64),
            np.fromiter((label for _, labels in self._spellings for label in labels), np.int32, sum(sizes)),
            np.array([index for index, _ in self._spellings], np.int32),
            len(self.words),
        )


def read_lexicon(path: str, labels: DecodedLabels) -> WordLexicon:
    """Read a lexicon: in each line a word and, separated by blanks or tabs, the names of its labels.

    A word may have several lines. A line with a word alone is spelt by the vocabulary. ``.gz`` is decompressed.

    :raises ConfigError: the vocabulary splits words at random
    :raises DataError: the file is missing or empty, lines have labels that the model lacks, or words can't be spelt or
        have the label between words
    """
    lexicon = WordLexicon(labels)
    unknown: list[tuple[int, str]] = []
    unspelt: list[tuple[int, str]] = []
    separated: list[tuple[int, str]] = []
    for number, word, names in _lines(path):
        if not names:
            spelt = labels.spell(word)
            if spelt is None:
                unspelt.append((number, word))
            else:
                lexicon.add(word, spelt)
                lexicon.is_spelt = True
            continue
        found = [labels.index(name) for name in names]
        known = [index for index in found if index is not None]
        if len(known) < len(found):
            unknown.append((number, names[found.index(None)]))
        elif labels.has_separator(known):
            separated.append((number, word))
        else:
            lexicon.add(word, known)
    if unknown:
        hint = did_you_mean(unknown[0][1], labels.names[:_MOST_COMPARED], max_listed=10)
        raise CtcDataError(
            "Lexicon %r has labels that the model lacks, in %s: line %s. %s"
            % (path, counted(len(unknown), "line"), _listed(unknown), hint)
        )
    if unspelt:
        raise CtcDataError(
            "Lexicon %r has %s that the labels of the model can't spell: line %s. Write the labels behind the word, or "
            "remove it." % (path, counted(len(unspelt), "word"), _listed(unspelt))
        )
    if separated:
        raise CtcDataError(
            "Lexicon %r has %s with the label %r, which is the one between words: line %s. Remove it there, or "
            "name another separator (in settings decode_separator)."
            % (path, counted(len(separated), "word"), labels.name(labels.separator or 0), _listed(separated))
        )
    if not lexicon.words:
        raise CtcDataError("Lexicon %r is empty: a line is a word and the names of its labels." % path)
    return lexicon


_kept: dict[str, tuple[Any, WordLexicon]] = {}  # by path: what tells the file and the labels, and the lexicon


def kept_lexicon(path: str, labels: DecodedLabels) -> WordLexicon:
    """Return a lexicon as `read_lexicon`, read once for all plans of a network; it must not be changed."""
    status = os.stat(path) if os.path.isfile(path) else None
    told = status and (status.st_size, status.st_mtime_ns, tuple(labels.names), labels.separator, labels.space)
    before, lexicon = _kept.get(path, (None, None))
    if lexicon is None or told != before or (lexicon.is_spelt and lexicon.labels.vocabulary is not labels.vocabulary):
        lexicon = read_lexicon(path, labels)
        _kept[path] = told, lexicon
    return lexicon


def _lines(path: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (number of the line, word, names of labels)."""
    with wanted_by("The lexicon"):
        text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if fields:
            yield number, fields[0], fields[1:]


def _listed(places: Sequence[tuple[int, str]]) -> str:
    shown = ", ".join("%d (%r)" % place for place in places[:_SHOWN])
    return shown + ", ..." * (len(places) > _SHOWN)
