"""Reads n-gram models in the ARPA format line by line, as the library of the native search does. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Optional

#: Words of the longest n-grams that the library takes.
MOST_WORDS = 8
_DATA, _END = b"\\data\\", b"\\end\\"
#: Bytes are split at blanks and tabs only: a word may have other characters that count as space.
_FIELDS = re.compile(rb"[^ \t\r\n]+")


class ArpaReader:
    """The sections of a file, which have to be read one after the other.

    :param lines: of the file
    :raises ValueError: the section data is missing or wrong; with the line, as all errors of the methods
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = enumerate(lines, 1)
        #: Number of the line that was read last.
        self.line = 0
        self._head = b""  # of the section that follows; empty at the end of the file
        #: How many n-grams of each order the file announces.
        self.counts: list[int] = []
        while (fields := self._fields()) and fields[0] != _DATA:
            if fields[0].startswith(b"\\"):
                raise self.error('"%s" where %s has to follow' % (text(fields[0]), text(_DATA)))
        while (fields := self._fields()) and not fields[0].startswith(b"\\"):
            self.counts.append(self._count(fields))
        self._head = fields[0] if fields else b""

    def error(self, what: str) -> ValueError:
        """Return the error that something is wrong in the line that was read last."""
        return ValueError("line %d: %s" % (self.line, what))

    def _fields(self) -> list[bytes]:
        """Return the fields of the next line that has some; none at the end of the file."""
        for number, line in self._lines:
            self.line = number
            if fields := _FIELDS.findall(line):
                return fields
        return []

    def _count(self, fields: list[bytes]) -> int:
        order, line = len(self.counts) + 1, b" ".join(fields)
        match = re.fullmatch(rb"ngram %d ?= ?(\d+)" % order, line)
        if match is None:
            raise self.error('"%s" is not "ngram %d=<count>"' % (text(line), order))
        if order > MOST_WORDS:
            raise self.error("n-grams of more than %d words" % MOST_WORDS)
        return int(match[1])

    def ngrams(self, order: int) -> Iterator[tuple[tuple[bytes, ...], float, float]]:
        """Yield the words of each n-gram, in UTF-8, with log10 of its probability and of its back-off weight.

        :param order: that of the section that follows
        :raises ValueError: it does not follow, is not complete, or a line is wrong
        """
        expected, found = b"\\%d-grams:" % order, 0
        if self._head != expected:
            if self._head and (self._head != _END or order == 1):
                raise self.error('"%s" where %s has to follow' % (text(self._head), text(expected)))
            raise self._incomplete(order - 1)
        if order > len(self.counts):
            raise self._not_announced(str(order))
        while fields := self._fields():
            if fields[0].startswith(b"\\"):
                break
            found += 1
            if found > self.counts[order - 1]:
                raise self.error("more %d-grams than the section \\data\\ announces" % order)
            yield self._ngram(fields, order)
        self._head = fields[0] if fields else b""
        if found < self.counts[order - 1]:
            what = "the section \\%d-grams: has %d of %d n-grams" % (order, found, self.counts[order - 1])
            raise self.error(what)

    def _ngram(self, fields: list[bytes], order: int) -> tuple[tuple[bytes, ...], float, float]:
        log_prob = _number(fields[0])
        if log_prob is None or log_prob > 0:
            raise self.error('"%s" is not the log10 of a probability' % text(fields[0]))
        words = tuple(fields[1 : order + 1])
        if len(words) < order:
            raise self.error("less than %d words" % order)
        backoff = _number(fields[order + 1]) if len(fields) > order + 1 else 0.0
        if backoff is None:
            raise self.error('"%s" is not a back-off weight' % text(fields[order + 1]))
        return words, log_prob, backoff

    def end(self) -> None:
        """Read the rest of the file, behind all n-grams: a compressed file has its checksum there.

        :raises ValueError: the end is missing
        """
        if not self._head:
            raise self._incomplete(len(self.counts))
        if self._head != _END:
            raise self._not_announced(text(self._head[1:].partition(b"-")[0]))
        for _ in self._lines:
            pass

    def _not_announced(self, order: str) -> ValueError:
        return self.error("the section \\data\\ announces no %s-grams" % order)

    def _incomplete(self, order: int) -> ValueError:
        if not order:
            return ValueError("it has no section \\1-grams:")
        without_end = "" if self._head else ", without \\end\\"
        done = (order, len(self.counts), without_end)
        return ValueError("it is not complete: it ends after the %d-grams of %d%s" % done)


def text(content: bytes) -> str:
    """Return bytes of a file for a message."""
    return content.decode("utf8", "replace")


def _number(field: bytes) -> Optional[float]:
    try:
        number = float(field)
    except ValueError:
        return None
    return None if number != number else number
