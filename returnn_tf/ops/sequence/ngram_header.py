"""What planning needs of an n-gram model: its order, and the words of an ARPA file. No TensorFlow, no library.

The n-grams of higher orders, and the words of a binary file, are read by the library, once a graph is made.
"""

from __future__ import annotations

import functools
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.errors import CtcDataError
from returnn_tf.datasets.core.safe_files import check_regular

#: How binary files of KenLM begin, and the byte with their order.
_BINARY, _AT_ORDER = b"mmap lm http://kheafield.com/code ", 88
#: Words of the longest n-grams that the library takes.
_MOST_WORDS = 8
#: Bytes are split at blanks and tabs only: a word may have other characters that count as space.
_FIELDS = re.compile(rb"[^ \t\r\n]+")


@dataclass(frozen=True)
class NGramHeader:
    """The beginning of a model.

    :param order: number of words of the longest n-grams
    :param words: in UTF-8, but `<unk>`; None: of a binary file, in which only the library finds them
    """

    order: int
    words: Optional[frozenset[bytes]]


def read_header(path: str) -> NGramHeader:
    """Read the beginning of an ARPA file, also compressed by gzip, or of a binary file of KenLM; kept until it changes.

    :raises DataError: it is missing, of another kind or damaged; with its line
    """
    try:
        check_regular(path)
        status = os.stat(path)
        return _read(path, status.st_size, status.st_mtime_ns)
    except OSError as exc:
        raise CtcDataError("Language model %r can't be read: %s." % (path, exc.strerror or exc)) from exc
    except (ValueError, EOFError, zlib.error) as exc:
        raise CtcDataError("Language model %r is no n-gram model that can be read: %s." % (path, exc)) from exc


@functools.lru_cache(maxsize=4)
def _read(path: str, size: int, _: int) -> NGramHeader:
    if not size:
        raise ValueError("it is empty")
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        begin = file.read(_AT_ORDER + 1)
        if begin.startswith(_BINARY):
            if not 1 <= begin[-1] <= _MOST_WORDS or len(begin) <= _AT_ORDER:
                raise ValueError("it is damaged, or has n-grams of more than %d words" % _MOST_WORDS)
            return NGramHeader(begin[-1], None)
        file.seek(0)
        return _of_arpa(file)


def _of_arpa(lines: Iterable[bytes]) -> NGramHeader:
    """Read an ARPA file up to its 2-grams.

    :raises ValueError: it is none, or a line is wrong
    """
    counts: list[int] = []
    words: set[bytes] = set()
    number, found, section = 0, 0, b""
    for number, line in enumerate(lines, 1):
        fields = _FIELDS.findall(line)
        if not fields:
            continue
        if fields[0].startswith(b"\\"):
            if section == b"\\1-grams:":
                break
            expected = b"\\1-grams:" if counts else b"\\data\\"
            if fields[0] != expected:
                raise ValueError('line %d: "%s" where %s has to follow' % (number, _text(fields[0]), _text(expected)))
            section = expected
        elif section == b"\\data\\":
            counts.append(_count(line, number, len(counts) + 1))
        elif section:
            found += 1
            words.add(_word(fields, number))
    if section != b"\\1-grams:":
        raise ValueError("it has no section \\1-grams:")
    if found != counts[0]:
        raise ValueError("line %d: the section \\1-grams: has %d of %d n-grams" % (number, found, counts[0]))
    return NGramHeader(len(counts), frozenset(words - {b"<unk>", b"<UNK>"}))


def _count(line: bytes, number: int, order: int) -> int:
    """Return the number of n-grams in a line of the section data."""
    match = re.fullmatch(rb"ngram\s+%d\s*=\s*(\d+)" % order, line.strip())
    if match is None:
        raise ValueError('line %d: "%s" is not "ngram %d=<count>"' % (number, _text(line.strip()), order))
    if order > _MOST_WORDS:
        raise ValueError("line %d: n-grams of more than %d words" % (number, _MOST_WORDS))
    return int(match[1])


def _word(fields: Sequence[bytes], number: int) -> bytes:
    """Return the word of a line of the 1-grams."""
    try:
        fits = float(fields[0]) <= 0
    except ValueError:
        fits = False
    if not fits:
        raise ValueError('line %d: "%s" is not the log10 of a probability' % (number, _text(fields[0])))
    if len(fields) < 2:
        raise ValueError("line %d: less than 1 words" % number)
    return fields[1]


def _text(content: bytes) -> str:
    return content.decode("utf8", "replace")
