"""Back-off n-gram models: ARPA files, or the KenLM library if installed. No TensorFlow."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import math
import os
import zlib
from collections.abc import Sequence
from typing import Any

from returnn_tf.config.errors import OptionDataError
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.ops.sequence.arpa import ArpaReader

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
_UNKNOWN_OF_OTHERS = "<UNK>"  # of some programs that estimate models; KenLM takes both
_TO_NATURAL = math.log(10.0)


class ArpaModel:
    """An n-gram model with back-off (Katz 1987) from a text file in the ARPA format.

    The state is the tuple of the last words.

    :param path: decompressed if it ends in ``.gz``
    :raises DataError: it is missing, not an ARPA file, or not complete: its end or some of the n-grams are missing
    """

    def __init__(self, path: str) -> None:
        self._grams: dict[tuple[str, ...], tuple[float, float]] = {}  # -> log10 of probability and back-off weight
        try:
            with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
                reader = ArpaReader(file)
                for order in range(1, max(1, len(reader.counts)) + 1):
                    self._read(reader, order)
                reader.end()
        except (OSError, EOFError, ValueError, zlib.error) as exc:
            raise OptionDataError(
                "lm_file %r can't be read as ARPA file: %s. For a binary file install kenlm." % (path, exc)
            ) from exc
        self.order = len(reader.counts)

    def _read(self, reader: ArpaReader, order: int) -> None:
        """Read the n-grams of an order.

        :raises ValueError: a line is wrong
        """
        for words_in_utf8, log_prob, backoff in reader.ngrams(order):
            words = tuple(_token(word.decode("utf8", "surrogateescape")) for word in words_in_utf8)
            if order == 1 and words in self._grams:
                raise reader.error('the word "%s" is there twice' % words)
            unknown = [word for word in words if (word,) not in self._grams and word != UNKNOWN] if order > 1 else []
            if unknown:
                raise reader.error('the word "%s" is not among the 1-grams' % unknown[0])
            if order > 2 and words[:-1] not in self._grams:
                what = (" ".join(words[:-1]), order - 1)
                raise reader.error('the context "%s" of this n-gram is not among the %d-grams' % what)
            self._grams[words] = log_prob, backoff

    def begin(self) -> Any:
        """Return the state at the beginning of a sentence."""
        return (BEGIN,)[: self.order - 1]

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Return (natural log of the probability of the next word, next state)."""
        if (word,) not in self._grams:
            word = UNKNOWN
        history, total = state, 0.0
        while history + (word,) not in self._grams and history:
            total += self._grams.get(history, (0.0, 0.0))[1]
            history = history[1:]
        total += self._grams.get(history + (word,), (-100.0, 0.0))[0]
        after = (state + (word,))[-(self.order - 1) :] if self.order > 1 else ()
        return total * _TO_NATURAL, after


def _token(word: str) -> str:
    return UNKNOWN if word == _UNKNOWN_OF_OTHERS else word


class KenLmModel:
    """An n-gram model run by KenLM (Heafield 2011), which reads its binary files, too."""

    def __init__(self, path: str) -> None:
        import kenlm

        self._state: Any = kenlm.State
        try:
            self._model: Any = kenlm.Model(path)
        except (OSError, RuntimeError) as exc:
            raise OptionDataError("lm_file %r can't be read by kenlm: %s" % (path, exc)) from exc

    def begin(self) -> Any:
        """Return the state at the beginning of a sentence."""
        state = self._state()
        self._model.BeginSentenceWrite(state)
        return state

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Return (natural log of the probability of the next word, next state)."""
        after = self._state()
        return self._model.BaseScore(state, word, after) * _TO_NATURAL, after


def has_kenlm() -> bool:
    """Return whether the library is installed."""
    return importlib.util.find_spec("kenlm") is not None


def load_ngram_model(path: str) -> Any:
    """Load the model of a file, by KenLM if installed; cached until the file changes."""
    try:
        check_regular(path)
        status = os.stat(path)
    except OSError as exc:
        raise OptionDataError("lm_file %r can't be read: %s" % (path, exc.strerror or exc)) from exc
    return _load(path, (status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=4)
def _load(path: str, _version: tuple[int, int]) -> Any:
    return KenLmModel(path) if has_kenlm() else ArpaModel(path)


class LabelScorer:
    """Scores of label strings; a label may be a word or a piece of a word.

    :param model: `ArpaModel` or `KenLmModel`
    :param labels: by index
    :param unknown: the label for words that are not among the labels
    :param merge: suffix of word pieces that continue, e.g. "@@"; "" if labels are words
    """

    _MAX_CACHED = 200000

    def __init__(self, model: Any, labels: Sequence[str], unknown: str, merge: str) -> None:
        self._model = model
        self._labels = [UNKNOWN if label == unknown else label for label in labels]
        self._merge = merge
        #: label indices -> (score so far, state, piece of an incomplete word)
        self._known: dict[tuple[int, ...], tuple[float, Any, str]] = {}
        #: (state, piece of an incomplete word) -> see `next_scores`; strings with the same last words share them
        self._rows: dict[tuple[Any, str], list[float]] = {}

    def next_scores(self, history: tuple[int, ...]) -> list[float]:
        """Return, for each label, how the score of the string changes when that label is appended."""
        _, state, piece = self._after(history)
        if (state, piece) not in self._rows:
            if len(self._rows) * len(self._labels) > self._MAX_CACHED:
                self._rows.clear()
            self._rows[state, piece] = [self._step(state, piece, label)[0] for label in self._labels]
        return self._rows[state, piece]

    def total(self, history: tuple[int, ...]) -> float:
        """Return the natural log of the probability of the complete words of a string."""
        return self._after(history)[0]

    def _step(self, state: Any, piece: str, label: str) -> tuple[float, Any, str]:
        """Return (change of the score, state, piece). A word is scored when it is complete."""
        if self._merge and label.endswith(self._merge):
            return 0.0, state, piece + label[: -len(self._merge)]
        score, state = self._model.score(state, piece + label)
        return score, state, ""

    def _after(self, history: tuple[int, ...]) -> tuple[float, Any, str]:
        if len(self._known) > self._MAX_CACHED:
            self._known.clear()
        count = len(history)
        while count and history[:count] not in self._known:
            count -= 1
        if not count and () not in self._known:
            self._known[()] = 0.0, self._model.begin(), ""
        for end in range(count, len(history)):
            before, state, piece = self._known[history[:end]]
            score, state, piece = self._step(state, piece, self._labels[history[end]])
            self._known[history[: end + 1]] = before + score, state, piece
        return self._known[history]
