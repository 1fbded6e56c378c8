"""N-gram models of files, and whether their words are those of a decoder."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CtcDataError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.logging.log import log
from returnn_tf.native.decoding.ctc_search import NGram, ctc_library

#: A model that lacks a larger share of the words is one of another vocabulary.
_MOST_UNKNOWN = 0.5
_SHOWN = 5


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
