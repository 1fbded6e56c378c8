"""What planning needs of an n-gram model: its order, and the words of an ARPA file. No TensorFlow, no library.

The n-grams of higher orders, and the words of a binary file, are read by the library, once a graph is made.
"""

from __future__ import annotations

import functools
import gzip
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.errors import CtcDataError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.ops.sequence.arpa import MOST_WORDS, ArpaReader

#: How binary files of KenLM begin, and the byte with their order.
_BINARY, _AT_ORDER = b"mmap lm http://kheafield.com/code ", 88


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
            if not 1 <= begin[-1] <= MOST_WORDS or len(begin) <= _AT_ORDER:
                raise ValueError("it is damaged, or has n-grams of more than %d words" % MOST_WORDS)
            return NGramHeader(begin[-1], None)
        file.seek(0)
        return _of_arpa(file)


def _of_arpa(lines: Iterable[bytes]) -> NGramHeader:
    """Read an ARPA file up to its 2-grams.

    :raises ValueError: it is none, or a line is wrong
    """
    reader = ArpaReader(lines)
    words = {word for (word,), _, _ in reader.ngrams(1)}
    return NGramHeader(len(reader.counts), frozenset(words - {b"<unk>", b"<UNK>"}))
