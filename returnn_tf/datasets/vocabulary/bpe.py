"""Vocabularies whose labels are pieces of words: by byte pair encoding, or sampled."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from returnn_tf.config import ConfigError
from returnn_tf.config.options import option, probability
from returnn_tf.datasets.core.safe_files import wanted_by
from returnn_tf.datasets.vocabulary.base import Path, SharedOptions, Vocabulary
from returnn_tf.datasets.vocabulary.bpe_codes import MERGE_MARK, read_codes
from returnn_tf.datasets.vocabulary.label_trie import LabelTrie

_CACHED_WORDS = 1 << 16


class BytePairEncoding(Vocabulary):
    """Words are split into pieces by byte pair encoding; a piece that does not end a word has ``@@`` at its end.

    A word that begins with ``$`` is one piece, and so are the words of a group ``{...}`` right after it.
    """

    @dataclass
    class Options(SharedOptions):
        """Options in the config."""

        bpe_file: Path = option(help="the merges, in the format of subword-nmt (versions 0.1 and 0.2; .gz allowed)")

    positional = ("vocab_file", "bpe_file", "seq_postfix")

    def setup(self) -> None:
        """Read the merges."""
        with wanted_by(self.where):
            codes = read_codes(os.fspath(self.opts.bpe_file))

        @functools.lru_cache(maxsize=_CACHED_WORDS)
        def split(word: str) -> tuple[str, ...]:
            *inner, last = codes.split(word, self._ids)
            return (*(piece + MERGE_MARK for piece in inner), last)

        self._split_word = split

    def pieces(self, sentence: str) -> list[str]:
        """Return the pieces of all words."""
        found: list[str] = []
        for word, whole in _words_and_groups(sentence):
            found += [word] if whole else self._split_word(word)
        return found


def _words_and_groups(sentence: str) -> Iterator[tuple[str, bool]]:
    """Iterate over the words, with whether they stay whole: ``$name`` and a group ``{...}`` after it."""
    after_name = in_group = False
    for word in sentence.split():
        if word[0] == "$" and len(word) > 1:
            after_name = True
            yield word, True
        elif in_group or (after_name and word[0] == "{"):
            in_group = word[-1] != "}"
            after_name = in_group
            yield word, True
        else:
            after_name = False
            yield word, False


class SamplingBytePairEncoding(Vocabulary):
    """Words are split at random into pieces which are labels; there is no list of merges.

    The pieces are searched depth first over the prefixes of the labels. With probability ``breadth_prob`` a step
    prefers to end the piece; else it continues it.
    """

    @dataclass
    class Options(SharedOptions):
        """Options in the config."""

        breadth_prob: float = option(help="probability of ending a piece where both is possible", check=probability)
        label_postfix_merge_symbol: Optional[str] = option(
            None, help="mark of a piece that does not end its word; default @@, if there is no word_prefix_symbol"
        )
        word_prefix_symbol: Optional[str] = option(None, help="symbol with which the first piece of a word begins")

    positional = ("vocab_file", "breadth_prob", "seq_postfix")
    is_random = True

    def setup(self) -> None:
        """Build the tree of the labels."""
        mark, prefix = self.opts.label_postfix_merge_symbol, self.opts.word_prefix_symbol
        if mark and prefix:
            raise ConfigError(
                "%s: give label_postfix_merge_symbol (%r) or word_prefix_symbol (%r), not both."
                % (self.where, mark, prefix)
            )
        self._trie = LabelTrie(self.labels, mark="" if prefix else mark or MERGE_MARK, prefix=prefix or "")
        self.set_random_seed(0)

    def set_random_seed(self, seed: Union[int, Sequence[int]]) -> None:
        """Begin a sequence of random numbers."""
        self._rng = np.random.RandomState(seed)

    def pieces(self, sentence: str) -> list[str]:
        """Return the pieces of all words; a word that cannot be split into labels is one piece."""
        draw: Any = self._rng.random_sample
        found: list[str] = []
        for word in sentence.split():
            found += self._trie.sample(word, self.opts.breadth_prob, draw) or [word]
        return found
