"""Byte pair encoding (Sennrich et al. 2016): words are merged from characters by a list of merges."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from returnn_tf.config import DataError
from returnn_tf.datasets.core.safe_files import read_text
from returnn_tf.datasets.vocabulary.files import read_unless_known

WORD_END = "</w>"
#: Marks a piece that does not end a word.
MERGE_MARK = "@@"
_HEADER = "#version:"
_VERSIONS = {"0.1": False, "0.2": True}


class BpeCodes:
    """The merges of a file in the format of subword-nmt, the most frequent first.

    :param path: "left right" in each line. After the header ``#version: 0.2`` the last character of a word carries
        ``</w>``; without it, or in version 0.1, ``</w>`` is a symbol of its own
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
            raise DataError("bpe_file %r has no merges." % path)
        if all(right.isdigit() for _, right in self._rank):
            raise DataError("bpe_file %r holds labels with counts, not merges; is it the vocab_file?" % path)

    def _version(self, line: str) -> bool:
        version = line[len(_HEADER) :].strip()
        if version not in _VERSIONS:
            known = " and ".join(_VERSIONS)
            raise DataError("bpe_file %r has the version %s; only %s are known." % (self.path, version, known))
        return _VERSIONS[version]

    def _add(self, number: int, line: str) -> None:
        parts = line.split(" ")
        if len(parts) != 2:
            raise DataError(
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
