"""Vocabularies whose labels are pieces of words: by byte pair encoding, or sampled."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

import numpy as np

from returnn_tf.config.errors import TextDataError, TextError
from returnn_tf.config.options import option, probability
from returnn_tf.datasets.core.safe_files import read_text, wanted_by
from returnn_tf.datasets.vocabulary.base import Path, SharedOptions, Vocabulary
from returnn_tf.datasets.vocabulary.files import read_unless_known

WORD_END = "</w>"
#: Marks a piece that does not end a word.
MERGE_MARK = "@@"
_HEADER = "#version:"
_VERSIONS = {"0.1": False, "0.2": True}


class BpeCodes:
    """The merges of byte pair encoding (Sennrich et al. 2016) in the format of subword-nmt, the most frequent first.

    :param path: "left right" in each line. After the header ``#version: 0.2`` the last character of a word carries
        ``</w>``; without it, or in version 0.1, ``</w>`` is a separate symbol
    :raises DataError: the file is missing, or has other lines or another version
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.end_is_joined = False
        self._rank: dict[tuple[str, str], int] = {}
        self._parts: dict[str, tuple[str, str]] = {}  # merged symbol -> what the first merge made it of
        for number, line in enumerate(read_text(path).split("\n"), 1):
            if number == 1 and line.startswith(_HEADER):
                self.end_is_joined = self._version(line)
            elif line.strip("\r\n "):
                self._add(number, line.strip("\r\n "))
        if not self._rank:
            raise TextDataError("bpe_file %r has no merges." % path)
        if all(right.isdigit() for _, right in self._rank):
            raise TextDataError("bpe_file %r holds labels with counts, not merges; is it the vocab_file?" % path)

    def _version(self, line: str) -> bool:
        version = line[len(_HEADER) :].strip()
        if version not in _VERSIONS:
            known = " and ".join(_VERSIONS)
            raise TextDataError("bpe_file %r has the version %s; only %s are known." % (self.path, version, known))
        return _VERSIONS[version]

    def _add(self, number: int, line: str) -> None:
        parts = line.split(" ")
        if len(parts) != 2:
            raise TextDataError(
                "bpe_file %r, line %d: expected a merge 'left right', got %r. Is it the vocab_file?"
                % (self.path, number, line[:60])
            )
        left, right = parts
        self._rank.setdefault((left, right), len(self._rank))
        self._parts.setdefault(left + right, (left, right))

    def split(self, word: str, known: Any) -> list[str]:
        """Return the pieces of a word, without marks.

        A piece that is not a label is cut again by undoing its merges, as far as there are any.

        :param known: the labels, a container
        """
        if len(word) == 1:
            return [word]
        symbols = self._merged([*word[:-1], word[-1] + WORD_END] if self.end_is_joined else [*word, WORD_END])
        if symbols[-1] == WORD_END:
            del symbols[-1]
        else:
            symbols[-1] = symbols[-1][: -len(WORD_END)]
        last = len(symbols) - 1
        return [piece for i, symbol in enumerate(symbols) for piece in self._known_pieces(symbol, known, i == last)]

    def _merged(self, symbols: list[str]) -> list[str]:
        """Apply the merge with the lowest rank wherever it fits, until none does."""
        while len(symbols) > 1:
            pairs = list(zip(symbols, symbols[1:]))
            best = min(pairs, key=lambda pair: self._rank.get(pair, len(self._rank)))
            if best not in self._rank:
                break
            symbols = _join(symbols, best)
        return symbols

    def _known_pieces(self, symbol: str, known: Any, final: bool) -> Iterator[str]:
        parts = self._parts.get(symbol + WORD_END if final else symbol)
        if (symbol if final else symbol + MERGE_MARK) in known or parts is None:
            yield symbol
            return
        left, right = parts
        yield from self._known_pieces(left, known, False)
        yield from self._known_pieces(right[: -len(WORD_END)] if final else right, known, final)


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Join a pair of neighbours wherever it occurs, from the left."""
    joined: list[str] = []
    i = 0
    while i < len(symbols):
        size = 2 if tuple(symbols[i : i + 2]) == pair else 1
        joined.append("".join(symbols[i : i + size]))
        i += size
    return joined


def read_codes(path: str) -> BpeCodes:
    """Read the merges; a file that did not change is read once per process.

    :raises DataError: see `BpeCodes`
    """
    return read_unless_known(path, "bpe_file", _read_once)


@functools.lru_cache(maxsize=8)
def _read_once(path: str, changed: int, size: int) -> BpeCodes:
    return BpeCodes(path)


class _Node:
    """A prefix of labels.

    :ivar label: the prefix, if it is a label
    :ivar inner: the label of this prefix for a piece that does not end a word
    """

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.label: Optional[str] = None
        self.inner: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class _Hypothesis:
    """The closed pieces of a word, the open one, and the number of characters in all of them."""

    pieces: tuple[str, ...]
    node: _Node
    size: int


class LabelTrie:
    """The prefixes of labels.

    :param labels: the pieces of words
    :param mark: end of the labels that do not end a word; empty: labels without mark may stand anywhere
    :param prefix: beginning of the labels that begin a word
    """

    def __init__(self, labels: Iterable[str], *, mark: str, prefix: str) -> None:
        self._root = _Node()
        for label in labels:
            is_inner = bool(mark) and label.endswith(mark)
            node = self._node(label[: -len(mark)] if is_inner else label)
            if is_inner:
                node.inner = label
            else:
                node.label = label
                if not mark:
                    node.inner = label
        self._root.inner = None  # an empty piece
        self._start = self._node(prefix)

    def _node(self, text: str) -> _Node:
        node = self._root
        for char in text:
            node = node.children.setdefault(char, _Node())
        return node

    def sample(self, word: str, breadth: float, draw: Callable[[], float]) -> list[str]:
        """Split a word into labels, depth first.

        In each step the open piece may be closed, or continued; what was added last to the stack is tried next. The
        random stream is that of RETURNN: one number per step, also where there is no choice.

        :param breadth: probability that closing is tried first
        :param draw: returns a random number from 0 to 1
        :returns: the labels; empty if there is no way to split
        """
        stack = [_Hypothesis((), self._start, 0)]
        while stack:
            candidates = self._steps(stack.pop(), word)
            if draw() <= breadth:
                candidates.reverse()
            result: list[str] = []
            for hypothesis in candidates:
                if hypothesis.size < len(word):
                    stack.append(hypothesis)
                elif hypothesis.node.label is not None:
                    result = [*hypothesis.pieces, hypothesis.node.label]
            if result:
                return result
        return []

    def _steps(self, hypothesis: _Hypothesis, word: str) -> list[_Hypothesis]:
        """Return the hypotheses after the next character: with the open piece closed before it, then continued."""
        char, size = word[hypothesis.size], hypothesis.size + 1
        node = hypothesis.node
        found = []
        if node.inner is not None and char in self._root.children:
            found.append(_Hypothesis((*hypothesis.pieces, node.inner), self._root.children[char], size))
        if char in node.children:
            found.append(_Hypothesis(hypothesis.pieces, node.children[char], size))
        return found


_CACHED_WORDS = 1 << 16


class BytePairEncoding(Vocabulary):
    """Words are split into pieces by byte pair encoding; a piece that does not end a word has ``@@`` at its end.

    A word that begins with ``$`` is one piece, and so are the words of a group ``{...}`` right after it.
    """

    @dataclass
    class Options(SharedOptions):
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
        for word, whole in words_and_groups(sentence):
            found += [word] if whole else self._split_word(word)
        return found


def words_and_groups(sentence: str) -> Iterator[tuple[str, bool]]:
    """Yield the words, with whether they stay whole: ``$name`` and a group ``{...}`` after it."""
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
            raise TextError(
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
