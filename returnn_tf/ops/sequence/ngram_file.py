"""N-gram models of files, and whether their words are those of a decoder."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CtcDataError, CtcError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.logging.log import log
from returnn_tf.native.decoding.ctc_search import NGram, ctc_library
from returnn_tf.ops.sequence.lexicon import WordLexicon

#: A model that lacks a larger share of the words is one of another vocabulary.
_MOST_UNKNOWN = 0.5
_SHOWN = 5
#: The label " " in a model of labels: blanks separate the words of an ARPA file.
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True)
class NGramFile:
    """A language model.

    :param path: for messages
    :param of_labels: whether it is a model of labels, also if there is a lexicon
    """

    model: NGram
    path: str
    of_labels: bool

    def indices(self, labels: DecodedLabels, num_labels: int, lexicon: Optional[WordLexicon]) -> NDArray[np.int32]:
        """Return the indices of what it scores: labels, or the words of a lexicon.

        :param num_labels: with those that have no name
        :raises ConfigError: a model of words without a lexicon
        :raises DataError: it lacks most of them
        """
        if self.of_labels:
            names = [SPACE if name == " " else name for name in labels.names]
            names += ["<unk>"] * (num_labels - len(names))
            return indices_in(self.model, names, self.path, "labels")
        if lexicon is None:
            raise CtcError(
                "Language model %r is one of words: that needs a lexicon. For a model of labels set lm_level = 'label'."
                % self.path
            )
        return indices_in(self.model, lexicon.words, self.path, "words of the lexicon")


def open_ngram(path: str, level: Optional[str], lexicon: Optional[WordLexicon]) -> NGramFile:
    """Open a language model.

    :param level: "word" or "label"; None: words if there is a lexicon
    :raises DataError, NativeOpError: see `read_ngram`
    """
    level = level or ("word" if lexicon is not None else "label")
    return NGramFile(read_ngram(path), path, of_labels=level == "label")


def read_ngram(path: str) -> NGram:
    """Read an ARPA file, also compressed by gzip, or map a binary file of KenLM with probing hash tables.

    :raises DataError: it is missing, of another kind or damaged
    :raises NativeOpError: the library can't be built
    """
    library = ctc_library()
    try:
        check_regular(path)
        content: NDArray[Any]
        if path.endswith(".gz"):
            with gzip.open(path) as file:
                content = np.frombuffer(file.read(), np.uint8)
        else:
            if not os.path.getsize(path):
                raise ValueError("it is empty")
            content = np.memmap(path, np.uint8, "r")
        return NGram(library, content)
    except OSError as exc:
        raise CtcDataError("Language model %r can't be read: %s." % (path, exc.strerror or exc)) from exc
    except (ValueError, EOFError, zlib.error) as exc:
        raise CtcDataError("Language model %r is no n-gram model that can be read: %s." % (path, exc)) from exc


def indices_in(model: NGram, words: Sequence[str], path: str, what: str) -> NDArray[np.int32]:
    """Return the indices of words in a model, 0 for those that it lacks; they are told in the log.

    :param path: of the model
    :param what: "words of the lexicon" or "labels"
    :raises DataError: the model lacks most of them
    """
    indices = model.indices(words)
    missing = [word for word, index in zip(words, indices) if not index and word.lower() != "<unk>"]
    if missing:
        shown = ", ".join(map(repr, missing[:_SHOWN])) + ", ..." * (len(missing) > _SHOWN)
        text = "Language model %r lacks %d of the %d %s: %s." % (path, len(missing), len(words), what, shown)
        if len(missing) > _MOST_UNKNOWN * len(words):
            raise CtcDataError(
                "%s It is one of another vocabulary: compare how words are written, as in capitals, and "
                "whether it is a model of words or of labels." % text
            )
        log.warn(text + " They are scored as <unk>.")
    return indices
