"""Native prefix beam search over scores per frame, with lexicon, n-gram model and weights of phrases: called by ctypes.

Its state are models and hypotheses rather than tensors; no lock of Python is held while it runs, so that threads search
several sequences at once. The op of the library, for searches in graphs, is in `word_scores`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import c_functions, needed_op
from returnn_tf.native.shared_files import share_file
from returnn_tf.native.sources import register_op

_ERROR_SIZE = 1000
_int32s, _int64s, _floats, _bytes = (
    ctypes.POINTER(kind) for kind in (ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_uint8)
)


class _Lexicon(ctypes.Structure):
    _fields_ = [
        ("spellings", ctypes.c_int64),
        ("offsets", _int64s),
        ("labels", _int32s),
        ("words", _int32s),
        ("num_words", ctypes.c_int64),
    ]


class _Phrases(ctypes.Structure):
    _fields_ = [
        ("phrases", ctypes.c_int64),
        ("offsets", _int64s),
        ("tokens", _int32s),
        ("weights", _floats),
        ("begins", _bytes),
        ("ends", _bytes),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("num_labels", ctypes.c_int32),
        ("blank", ctypes.c_int32),
        ("separator", ctypes.c_int32),
        ("beam_size", ctypes.c_int32),
        ("labels_per_frame", ctypes.c_int32),
        ("beam_threshold", ctypes.c_float),
        ("lm_scale", ctypes.c_float),
        ("word_score", ctypes.c_float),
        ("unknown_score", ctypes.c_float),
        ("loop_score", ctypes.c_float),
        ("forward_score", ctypes.c_float),
        ("lm_of_labels", ctypes.c_int32),
    ]


class _LabelScores(ctypes.Structure):
    _fields_ = [("readings", ctypes.c_int32), ("end_label", ctypes.c_int32)]


class _Hypothesis(ctypes.Structure):
    _fields_ = [
        ("labels", _int32s),
        ("num_labels", ctypes.c_int64),
        ("words", _int32s),
        ("word_ends", _int32s),
        ("word_begins", _int32s),
        ("num_words", ctypes.c_int64),
        ("score", ctypes.c_double),
        ("acoustic", ctypes.c_double),
        ("lm", ctypes.c_double),
        ("word", ctypes.c_double),
        ("phrase", ctypes.c_double),
    ]


#: Function -> type of its result, types of its arguments; a pointer to something of the library is a void pointer.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "rtf_ngram_new": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64]),
    "rtf_ngram_free": (None, [ctypes.c_void_p]),
    "rtf_ngram_order": (ctypes.c_int32, [ctypes.c_void_p]),
    "rtf_ngram_indices": (None, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, _int32s]),
    "rtf_ngram_scores": (None, [ctypes.c_void_p, _int32s, ctypes.c_int64, ctypes.c_int32, _floats]),
    "rtf_ctc_decoder_new": (
        ctypes.c_void_p,
        [
            ctypes.POINTER(_Options),
            ctypes.POINTER(_Lexicon),
            ctypes.c_void_p,
            _int32s,
            ctypes.POINTER(_Phrases),
        ],
    ),
    "rtf_ctc_decoder_free": (None, [ctypes.c_void_p]),
    "rtf_ngram_share": (None, [ctypes.c_void_p, ctypes.c_char_p]),
    "rtf_label_words": (
        ctypes.c_int64,
        [
            ctypes.c_void_p,
            ctypes.POINTER(_LabelScores),
            _int32s,
            ctypes.c_int64,
            ctypes.c_int32,
            _int32s,
            _int32s,
            _int32s,
        ],
    ),
    "rtf_ctc_search_new": (ctypes.c_void_p, [ctypes.c_void_p]),
    "rtf_ctc_search_free": (None, [ctypes.c_void_p]),
    "rtf_ctc_search_advance": (None, [ctypes.c_void_p, ctypes.c_int64, _floats]),
    "rtf_ctc_search_results": (
        ctypes.c_int64,
        [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.POINTER(_Hypothesis)],
    ),
    "rtf_ctc_align": (
        ctypes.c_double,
        [ctypes.c_void_p, _floats, ctypes.c_int64, _int32s, ctypes.c_int64, _int32s, _int32s],
    ),
}


def ctc_ops() -> Any:
    """Return the ops of the library, compiled if necessary.

    :raises NativeOpError: it can't be compiled or loaded, or gives wrong results
    """
    return needed_op("ctc_search", self_test)


@functools.lru_cache(maxsize=1)
def ctc_library() -> ctypes.CDLL:
    """Return the C interface of the library, compiled if necessary.

    :raises NativeOpError: see `ctc_ops`
    """
    return _declared(ctc_ops())


def _declared(ops: Any) -> ctypes.CDLL:
    library = c_functions(ops)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(kind)


def joined_words(words: Sequence[str]) -> bytes:
    """Return words as the library takes them, a line for each; one with a newline is empty, as no model has it."""
    return "\n".join("" if "\n" in word else word for word in words).encode("utf8", "surrogatepass")


class NGram:
    """An n-gram model in the library.

    :param content: of an ARPA file or a binary file of KenLM, bytes; kept as long as the model
    :raises ValueError: it is neither, or damaged
    """

    def __init__(self, library: ctypes.CDLL, content: NDArray[np.uint8]) -> None:
        self._library, self._content = library, content
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        self.pointer = library.rtf_ngram_new(content.ctypes.data, len(content), error, _ERROR_SIZE)
        if not self.pointer:
            raise ValueError(error.value.decode("utf8", errors="replace"))
        weakref.finalize(self, library.rtf_ngram_free, self.pointer)

    @property
    def order(self) -> int:
        """Return the number of words of the longest n-grams."""
        return int(self._library.rtf_ngram_order(self.pointer))

    def indices(self, words: Sequence[str]) -> NDArray[np.int32]:
        """Return the indices of words; 0 for words that the model does not have, as those with newlines."""
        result = np.zeros(len(words), np.int32)
        if words:
            text = joined_words(words)
            self._library.rtf_ngram_indices(self.pointer, text, len(text), _pointer(result, _int32s))
        return result

    def scores(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the natural log of the probability of each word of a sentence, [words]."""
        indices = self.indices(words)
        result = np.zeros(len(words), np.float32)
        pointers = _pointer(indices, _int32s), len(words), 1, _pointer(result, _floats)
        self._library.rtf_ngram_scores(self.pointer, *pointers)
        return result

    def share(self, name: str) -> None:
        """Let the ops of graphs find the model by a name; it has to exist as long as the process."""
        share_file(name, self._content)
        self._library.rtf_ngram_share(self.pointer, name.encode("utf8", "surrogateescape"))


@dataclass(frozen=True)
class Spellings:
    """A lexicon: spelling i is ``labels[offsets[i] : offsets[i + 1]]``, of the word ``words[i]``."""

    offsets: NDArray[np.int64]
    labels: NDArray[np.int32]
    words: NDArray[np.int32]
    num_words: int


@dataclass(frozen=True)
class WeightedPhrases:
    """Sequences of words, or without a lexicon of labels, with the weight that each adds to the score.

    :param begins: [labels], which labels begin a word; None: tokens are words
    :param ends: [labels], which labels end a word
    """

    tokens: Sequence[Sequence[int]]
    weights: Sequence[float]
    begins: Optional[NDArray[np.uint8]] = None
    ends: Optional[NDArray[np.uint8]] = None


@dataclass(frozen=True)
class FoundLabels:
    """A hypothesis of the library; see `RtfHypothesis`."""

    labels: tuple[int, ...]
    words: tuple[int, ...]
    word_spans: tuple[tuple[int, int], ...]
    score: float
    acoustic: float
    lm: float
    word: float
    phrase: float


class CtcDecoder:
    """A decoder in the library; see `RtfCtcOptions`.

    :param options: its fields by name
    :param lm_indices: the indices of the words of the lexicon, or of the labels, in the model
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        options: dict[str, Any],
        spellings: Optional[Spellings] = None,
        model: Optional[NGram] = None,
        lm_indices: Optional[NDArray[np.int32]] = None,
        phrases: Optional[WeightedPhrases] = None,
    ) -> None:
        self.library, self.num_labels = library, int(options["num_labels"])
        self._model = model  # the decoder refers to it
        lexicon = None
        if spellings is not None:
            lexicon = _Lexicon(
                len(spellings.words),
                _pointer(spellings.offsets, _int64s),
                _pointer(spellings.labels, _int32s),
                _pointer(spellings.words, _int32s),
                spellings.num_words,
            )
        self.pointer = library.rtf_ctc_decoder_new(
            ctypes.byref(_Options(**options)),
            None if lexicon is None else ctypes.byref(lexicon),
            None if model is None else model.pointer,
            None if lm_indices is None else _pointer(lm_indices, _int32s),
            None if phrases is None else ctypes.byref(_phrases(phrases)),
        )
        weakref.finalize(self, library.rtf_ctc_decoder_free, self.pointer)


def _phrases(phrases: WeightedPhrases) -> _Phrases:
    offsets = np.cumsum([0, *map(len, phrases.tokens)], dtype=np.int64)
    tokens = np.array(list(itertools.chain.from_iterable(phrases.tokens)), np.int32)
    weights = np.array(phrases.weights, np.float32)
    flags = [None if flag is None else _pointer(flag, _bytes) for flag in (phrases.begins, phrases.ends)]
    result = _Phrases(
        len(weights), _pointer(offsets, _int64s), _pointer(tokens, _int32s), _pointer(weights, _floats), *flags
    )
    result.kept = offsets, tokens, weights  # as long as the structure
    return result


def label_words(
    decoder: CtcDecoder, readings: int, end_label: Optional[int], labels: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return the words of a sequence of labels by its best reading: number, first label, and the one past the last.

    :param decoder: gives lexicon, model and scales
    :param readings: ways to divide labels into words that are kept
    :param end_label: see `rtf_label_words`
    """
    given = np.array(labels, np.int32)
    found = np.zeros((3, len(given)), np.int32)
    count = decoder.library.rtf_label_words(
        decoder.pointer,
        ctypes.byref(_LabelScores(readings, -1 if end_label is None else end_label)),
        _pointer(given, _int32s),
        len(given),
        1,
        *(_pointer(row, _int32s) for row in found),
    )
    return [(word, first, past) for word, first, past in found[:, :count].T.tolist()]


class CtcSearch:
    """A search over one sequence, for one thread at a time."""

    def __init__(self, decoder: CtcDecoder) -> None:
        self._decoder, self._library = decoder, decoder.library
        self._pointer = self._library.rtf_ctc_search_new(decoder.pointer)
        weakref.finalize(self, self._library.rtf_ctc_search_free, self._pointer)

    def advance(self, log_probs: NDArray[np.float32]) -> None:
        """Continue by some frames, [frames, labels] in C order."""
        self._library.rtf_ctc_search_advance(self._pointer, len(log_probs), _pointer(log_probs, _floats))

    def results(self, n: int, *, ended: bool) -> list[FoundLabels]:
        """Return at most n hypotheses, the best first; see `rtf_ctc_search_results`."""
        rows = (_Hypothesis * n)()
        count = self._library.rtf_ctc_search_results(self._pointer, int(ended), n, rows)
        return [
            FoundLabels(
                tuple(row.labels[: row.num_labels]),
                tuple(row.words[: row.num_words]),
                tuple(zip(row.word_begins[: row.num_words], row.word_ends[: row.num_words])),
                *(float(getattr(row, name)) for name in ("score", "acoustic", "lm", "word", "phrase")),
            )
            for row in rows[:count]
        ]


def align(
    decoder: CtcDecoder, log_probs: NDArray[np.float32], labels: Sequence[int]
) -> Optional[list[tuple[int, int]]]:
    """Return the frames of each label on the best path: the first, and the one past the last.

    :param decoder: gives blank and transitions
    :param log_probs: [frames, labels] in C order
    :return: None if there are too few frames
    """
    given = np.array(labels, np.int32)
    begins, ends = np.zeros_like(given), np.zeros_like(given)
    score = decoder.library.rtf_ctc_align(
        decoder.pointer,
        _pointer(log_probs, _floats),
        len(log_probs),
        _pointer(given, _int32s),
        len(given),
        _pointer(begins, _int32s),
        _pointer(ends, _int32s),
    )
    return None if score == -math.inf else list(zip(begins.tolist(), ends.tolist()))


@register_op(
    "ctc_search",
    kernels=(
        "ctc_search/ctc_search.cc",
        "ctc_search/decoder.cc",
        "ctc_search/label_scores.cc",
        "ctc_search/ngram.cc",
        "ctc_search/phrases.cc",
        "ctc_search/search.cc",
        "ctc_search/trie.cc",
    ),
    bindings=("ctc_search/word_scores_op.cc",),
)
def self_test(ops: Any) -> None:
    """Compare the sums of all label sequences of a few frames with those of all alignments.

    :raises NativeOpError: they differ
    """
    library = _declared(ops)
    frames, num_labels, blank = 4, 3, 1
    scores = np.random.RandomState(1).normal(0, 1, (frames, num_labels))
    scores = (scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))).astype("float32")
    expected: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(num_labels), repeat=frames):
        labels = tuple(label for label, _ in itertools.groupby(path) if label != blank)
        total = float(np.exp(scores[np.arange(frames), list(path)].sum(dtype="float64")))
        expected[labels] = expected.get(labels, 0.0) + total
    options = {"num_labels": num_labels, "blank": blank, "separator": -1, "beam_size": 1000, "beam_threshold": 1e9}
    decoder = CtcDecoder(library, options)
    search = CtcSearch(decoder)
    search.advance(scores)
    found = {entry.labels: math.exp(entry.acoustic) for entry in search.results(1000, ended=True)}
    if found.keys() != expected.keys() or not all(math.isclose(found[k], expected[k], rel_tol=1e-5) for k in found):
        raise NativeOpError("the CTC search that was compiled gives wrong scores")
    if align(decoder, scores, [0, 0]) is None or align(decoder, scores, [0, 0, 0]) is not None:
        raise NativeOpError("the CTC alignment that was compiled is wrong")
