"""N-gram models of files, and whether their words are those of a decoder."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import CtcDataError, CtcError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.logging.log import log
from returnn_tf.native.decoding.ctc_search import NGram, ctc_library
from returnn_tf.native.decoding.word_scores import ScoredTokens
from returnn_tf.ops.sequence.lexicon import WordLexicon
from returnn_tf.ops.sequence.ngram_header import read_header

#: A model that lacks a larger share of the words is one of another vocabulary.
_MOST_UNKNOWN = 0.5
_SHOWN = 5
#: Of a file: the bytes that are read at once for a hash, and the digits of this that tell it from others.
_BLOCK, _DIGITS = 1 << 16, 10
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
        return indices_in(self.model, *_scored(self.path, self.of_labels, labels, num_labels, lexicon))


def _scored(
    path: str, of_labels: bool, labels: DecodedLabels, num_labels: int, lexicon: Optional[WordLexicon]
) -> tuple[Sequence[str], str, str]:
    """Return what a model scores, labels or the words of a lexicon, its path, and what they are for messages."""
    if of_labels:
        names = [SPACE if name == " " else name for name in labels.names]
        return names + ["<unk>"] * (num_labels - len(names)), path, "labels"
    if lexicon is None:
        raise CtcError(
            "Language model %r is one of words: that needs a lexicon. For a model of labels set lm_level = 'label'."
            % path
        )
    return lexicon.words, path, "words of the lexicon"


def _is_of_labels(level: Optional[str], lexicon: Optional[WordLexicon]) -> bool:
    """Return whether a model is one of labels.

    :param level: "word" or "label"; None: words if there is a lexicon
    """
    return level == "label" or (level is None and lexicon is None)


def open_ngram(path: str, level: Optional[str], lexicon: Optional[WordLexicon]) -> NGramFile:
    """Open a language model.

    :param level: "word" or "label"; None: words if there is a lexicon
    :raises DataError, NativeOpError: see `read_ngram`
    """
    return NGramFile(read_ngram(path), path, of_labels=_is_of_labels(level, lexicon))


@dataclass(frozen=True)
class PlannedNGram:
    """A language model that a graph will have.

    :param of_labels: see `NGramFile`
    :param order: number of words of its longest n-grams
    :param scored: what it scores, its path, and what they are for messages
    :param is_checked: whether it is known that the model has them
    """

    of_labels: bool
    order: int
    scored: tuple[Sequence[str], str, str]
    is_checked: bool

    def for_ops(self) -> ScoredTokens:
        """Return the model as ops take it.

        :raises DataError: the file is damaged, or lacks most of what it is to score
        :raises NativeOpError: see `read_ngram`
        """
        names, path, what = self.scored
        name, model = _shared_model(path)
        if model.order != self.order:
            raise CtcDataError("Language model %r has changed while it was used. Start again." % path)
        if not self.is_checked:
            indices_in(model, names, path, what)
        return ScoredTokens(name, model.order, self.of_labels, names)

    def for_decoder(self) -> tuple[NGram, NDArray[np.int32]]:
        """Return the model, and the indices of what it scores; see `for_ops`."""
        _, model = _shared_model(self.scored[1])
        return model, model.indices(self.scored[0])


def plan_ngram(
    path: str, level: Optional[str], labels: DecodedLabels, num_labels: int, lexicon: Optional[WordLexicon]
) -> PlannedNGram:
    """Return a language model for a graph; of its file, only the beginning is read.

    :param level: "word" or "label"; None: words if there is a lexicon
    :param num_labels: with those that have no name
    :raises ConfigError: a model of words without a lexicon
    :raises DataError: the file is missing, of another kind or damaged, or lacks most of what it is to score
    """
    of_labels = _is_of_labels(level, lexicon)
    scored, header = _scored(path, of_labels, labels, num_labels, lexicon), read_header(path)
    if header.words is not None:
        known = [name.encode("utf8", "surrogatepass") in header.words for name in scored[0]]
        _check_known(known, *scored)
    return PlannedNGram(of_labels, header.order, scored, is_checked=header.words is not None)


#: Models that ops of graphs may have, by the names that ops know: they stay as long as the process.
_shared: dict[str, NGram] = {}
_sharing = threading.Lock()


def _shared_model(path: str) -> tuple[str, NGram]:
    """Return a model and its name; in a process, a file is read once.

    :raises DataError, NativeOpError: see `read_ngram`
    """
    with _sharing:
        try:
            name = _name_of(path)
        except OSError as exc:
            raise _unreadable(path, exc) from exc
        if name not in _shared:
            _shared[name] = read_ngram(path)
            _shared[name].share(name)
        return name, _shared[name]


def _name_of(path: str) -> str:
    """Return the name of a model for ops, and of its file in exports; it tells files of other contents apart.

    Of a binary file, which is mapped rather than read, and which nobody edits, beginning, middle and end are compared.
    """
    size = os.path.getsize(path)
    digest = hashlib.sha1(b"%d" % size)
    is_mapped = read_header(path).words is None
    with open(path, "rb") as file:
        for place in (0, size // 2, max(0, size - _BLOCK)) if is_mapped else range(0, size, _BLOCK):
            file.seek(place)
            digest.update(file.read(_BLOCK))
    name = os.path.basename(path[: -len(".gz")] if path.endswith(".gz") else path)
    stem, extension = os.path.splitext(re.sub(r"[^\w.-]", "_", name, flags=re.ASCII))
    return "%s-%s%s" % (stem, digest.hexdigest()[:_DIGITS], extension)


def _unreadable(path: str, exc: OSError) -> CtcDataError:
    return CtcDataError("Language model %r can't be read: %s." % (path, exc.strerror or exc))


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
        raise _unreadable(path, exc) from exc
    except (ValueError, EOFError, zlib.error) as exc:
        raise CtcDataError("Language model %r is no n-gram model that can be read: %s." % (path, exc)) from exc


def indices_in(model: NGram, words: Sequence[str], path: str, what: str) -> NDArray[np.int32]:
    """Return the indices of words in a model, 0 for those that it lacks; they are told in the log.

    :param path: of the model
    :param what: "words of the lexicon" or "labels"
    :raises DataError: the model lacks most of them
    """
    indices = model.indices(words)
    _check_known(indices, words, path, what)
    return indices


def _check_known(known: Iterable[Any], words: Sequence[str], path: str, what: str) -> None:
    """Check that a model has most words, and tell in the log which it lacks.

    :param known: of each word, whether the model has it
    :raises DataError: it lacks most of them
    """
    missing = [word for word, has in zip(words, known) if not has and word.lower() != "<unk>"]
    if not missing:
        return
    shown = ", ".join(map(repr, missing[:_SHOWN])) + ", ..." * (len(missing) > _SHOWN)
    text = "Language model %r lacks %d of the %d %s: %s." % (path, len(missing), len(words), what, shown)
    if len(missing) > _MOST_UNKNOWN * len(words):
        raise CtcDataError(
            "%s It is one of another vocabulary: compare how words are written, as in capitals, and "
            "whether it is a model of words or of labels." % text
        )
    log.warn(text + " They are scored as <unk>.")
