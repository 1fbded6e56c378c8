"""The labels of a model by name: words as sequences of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, CtcError, DataError
from returnn_tf.datasets.vocabulary.base import Vocabulary
from returnn_tf.datasets.vocabulary.spelling import SPACES, Spelling


class DecodedLabels:
    """The labels of a model.

    :param names: by index; further labels of the model, as the blank, have none
    :param vocabulary: what splits words as in training; None: only characters and whole words can be spelt
    :param separator: a label that may stand between words and belongs to none, as a silence; None: the space, if labels
        are characters

    >>> DecodedLabels(["a", "b", " "]).spell("ab")
    (0, 1, 2)
    """

    def __init__(
        self, names: Sequence[str], vocabulary: Optional[Vocabulary] = None, separator: Optional[int] = None
    ) -> None:
        self.names = list(names)
        self._ids = {name: index for index, name in enumerate(self.names)}
        self.vocabulary = vocabulary
        self.spelling = Spelling(self.names)
        spaces = [index for index, name in enumerate(self.names) if name in SPACES]
        #: The label that ends each word but the last one of a sequence; None: there is none.
        self.space: Optional[int] = spaces[0] if spaces and separator in (None, spaces[0]) else None
        self.separator = self.space if separator is None else separator

    def index(self, name: str) -> Optional[int]:
        """Return the index of a label; None if there is none of this name."""
        return self._ids.get(name)

    def name(self, index: int) -> str:
        """Return the name of a label; of one without a name its index."""
        return self.names[index] if index < len(self.names) else str(index)

    def completed(self, labels: Sequence[int]) -> tuple[int, ...]:
        """Return the labels of a word, with the space after it if words are separated by one."""
        labels = tuple(labels)
        return labels if self.space is None or labels[-1:] == (self.space,) else (*labels, self.space)

    def has_separator(self, labels: Sequence[int]) -> bool:
        """Return whether a word has the label between words where the search takes it for that one.

        The space is only behind a word or within one, any other separator in none.
        """
        return self.separator in (labels if self.separator != self.space else labels[:1])

    def spell(self, word: str) -> Optional[tuple[int, ...]]:
        """Return the labels of a word, as `completed`; None if it has characters that the labels lack.

        :raises ConfigError: the vocabulary splits texts at random
        """
        labels = self._split(word)
        return self.completed(labels) if labels and not self.has_separator(labels) else None

    def spell_phrase(self, phrase: str) -> Optional[tuple[int, ...]]:
        """Return the labels of words separated by blanks; None if one can't be spelt."""
        parts = [self.spell(word) for word in phrase.split()]
        return None if None in parts else tuple(label for part in parts for label in part or ())

    def _split(self, word: str) -> Optional[Sequence[int]]:
        if self.vocabulary is None:
            if word in self._ids:
                return [self._ids[word]]
            known = all(char in self._ids for char in word) and self._are_characters
            return [self._ids[char] for char in word] if known else None
        if self.vocabulary.is_random:
            raise CtcError(
                "The vocabulary splits words at random, as for training, but the search needs the one way to write %r. "
                "Give extern_data or the dataset to decode a vocabulary that does not." % word
            )
        try:
            labels: Sequence[int] = self.vocabulary.get_seq(word)
        except (ConfigError, DataError):
            return None
        labels = self._without_ends(labels)
        unknown = self.vocabulary.unknown_label_id
        return None if unknown in labels and word != self.vocabulary.unknown_label else labels

    def _without_ends(self, labels: Sequence[int]) -> Sequence[int]:
        """Return labels without those that the vocabulary puts before and behind every text."""
        begin = 0
        while begin < min(len(self._ends), len(labels)) and labels[begin] == self._ends[begin]:
            begin += 1
        return labels[begin : len(labels) - (len(self._ends) - begin)]

    @functools.cached_property
    def _ends(self) -> Sequence[int]:
        return [] if self.vocabulary is None else self.vocabulary.get_seq("")

    @functools.cached_property
    def _are_characters(self) -> bool:
        return self.space is not None or all(len(name) == 1 for name in self.names)

    def borders(self, num_labels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return which labels begin a word, and which end one, whatever is beside them: both [num_labels].

        If none does, as characters of a language that writes no spaces, there may be a word anywhere: all do.
        """
        begins, ends = np.ones(num_labels, np.uint8), np.ones(num_labels, np.uint8)
        found = [(self.spelling.begins_word(name), self.spelling.ends_word(name)) for name in self.names]
        if any(map(any, found)):
            begins[: len(found)], ends[: len(found)] = zip(*found)
        return begins, ends
