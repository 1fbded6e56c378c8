"""Learning the merges of byte pair encoding from the words of a corpus (Sennrich et al. 2016)."""

from __future__ import annotations

import collections
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.errors import TextDataError
from returnn_tf.datasets.vocabulary.bpe import MERGE_MARK, WORD_END, words_and_groups

#: A pair that is rarer is not merged.
_LEAST = 2

Pair = tuple[str, str]


@dataclass(frozen=True)
class LearnedPieces:
    """What `learn_bpe` returns.

    :param merges: the most frequent first
    :param labels: the further ones, then the characters, each also with ``@@``, then the other pieces
    """

    merges: list[Pair]
    labels: list[str]

    @property
    def codes(self) -> str:
        """Return the content of a ``bpe_file``."""
        return "#version: 0.2\n" + "".join("%s %s\n" % pair for pair in self.merges)

    @property
    def vocabulary(self) -> str:
        """Return the content of a ``vocab_file``."""
        return "".join(label + "\n" for label in self.labels)


def count_words(texts: Iterable[str]) -> collections.Counter[str]:
    """Count the words that `BytePairEncoding` splits: all but ``$name`` and the group in braces after it."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        if "$" in text:
            counts.update(word for word, whole in words_and_groups(text) if not whole)
        else:
            counts.update(text.split())
    return counts


def learn_bpe(
    words: Mapping[str, int], size: int, *, further: Sequence[str] = (), characters: str = ""
) -> LearnedPieces:
    """Learn merges until there are ``size`` labels; of pairs that are as frequent, the last one by its text is merged.

    Labels are the pieces of which words of the corpus consist after all merges, and all characters, so that other words
    of these can be written, too.

    :param words: how often each occurs
    :param further: labels that are no pieces, e.g. of the end
    :param characters: those that words may have beside those of the corpus
    :raises DataError: there are fewer or more labels, whatever is merged; says how many are possible
    """
    if not words:
        raise TextDataError("the corpus has no words")
    split = next((word for word in words if word.endswith(MERGE_MARK) or WORD_END in word), None)
    if split is not None:
        raise TextDataError("the corpus seems to be in pieces already: %r. Take its text before it was split" % split)
    single = sorted(set(characters).union(*words))
    labels = dict.fromkeys([*further, *(form for char in single for form in (char, char + MERGE_MARK))])
    if len(labels) < len(further) + 2 * len(single):
        raise TextDataError("the further labels must differ from each other, and from the characters of the corpus")
    if size < len(labels):
        text = (
            "%d labels are too few: the %d characters of the corpus, at the end of words and within, and the further "
        )
        raise TextDataError((text + "labels are %d") % (size, len(single), len(labels)))
    learner = _Learner(words)
    merges: list[Pair] = []
    while len(labels) + learner.num_pieces < size:
        pair = learner.most_frequent()
        if pair is None:
            most = len(labels) + learner.num_pieces
            raise TextDataError("%d labels are too many: the corpus gives no more than %d" % (size, most))
        learner.merge(pair)
        merges.append(pair)
    for label in learner.pieces(merges):
        if label in labels:
            raise TextDataError("the label %r is a piece of the corpus, too; choose another name for it" % label)
        labels[label] = None
    return LearnedPieces(merges, list(labels))


class _ByCount(tuple[int, Pair]):
    """A count and a pair in the order of a heap: large counts first, and of those the last pair by its text."""

    __slots__ = ()

    def __lt__(self, other: Any) -> bool:
        return bool(tuple.__gt__(self, other))


class _Learner:
    """The words of a corpus as symbols, and how often each pair of neighbours occurs."""

    def __init__(self, words: Mapping[str, int]) -> None:
        self._words = [[*word[:-1], word[-1] + WORD_END] for word in words]
        self._counts = list(words.values())
        self._pairs: collections.Counter[Pair] = collections.Counter()
        self._places: collections.defaultdict[Pair, set[int]] = collections.defaultdict(set)  # in which words
        self._merged: collections.Counter[str] = collections.Counter()  # how often each merged symbol occurs
        for number, symbols in enumerate(self._words):
            for pair in zip(symbols, symbols[1:]):
                self._pairs[pair] += self._counts[number]
                self._places[pair].add(number)
        self._heap = [_ByCount((count, pair)) for pair, count in self._pairs.items()]
        heapq.heapify(self._heap)

    @property
    def num_pieces(self) -> int:
        """Return the number of pieces of more than one character that occur."""
        return len(self._merged)

    def pieces(self, merges: Iterable[Pair]) -> Iterator[str]:
        """Yield these pieces as labels, in the order in which they were made."""
        for symbol in dict.fromkeys(left + right for left, right in merges):
            if symbol in self._merged:
                yield symbol[: -len(WORD_END)] if symbol.endswith(WORD_END) else symbol + MERGE_MARK

    def most_frequent(self) -> Optional[Pair]:
        """Return the pair to merge next; None: all are too rare."""
        while self._heap:
            count, pair = self._heap[0]
            if self._pairs[pair] == count:
                return pair if count >= _LEAST else None
            heapq.heappop(self._heap)  # it is another one by now, and there again
        return None

    def merge(self, pair: Pair) -> None:
        """Make a symbol of a pair wherever it occurs."""
        joined = "".join(pair)
        changed: set[Pair] = set()
        for number in self._places.pop(pair, ()):
            count, symbols = self._counts[number], self._words[number]
            self._count(number, symbols, -count, changed)
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == pair:
                    symbols[i : i + 2] = [joined]
                i += 1
            self._count(number, symbols, count, changed)
        for each in changed:
            if self._pairs[each] > 0:
                heapq.heappush(self._heap, _ByCount((self._pairs[each], each)))
            else:
                del self._pairs[each]
                self._places.pop(each, None)

    def _count(self, number: int, symbols: list[str], count: int, changed: set[Pair]) -> None:
        """Add to how often symbols and pairs of a word occur."""
        for symbol in symbols:
            if len(symbol.removesuffix(WORD_END)) > 1:
                self._merged[symbol] += count
                if not self._merged[symbol]:
                    del self._merged[symbol]
        for pair in zip(symbols, symbols[1:]):
            self._pairs[pair] += count
            changed.add(pair)
            if count > 0:
                self._places[pair].add(number)
