"""Labels for the lines of an LmDataset: symbols, a vocabulary, or phonemes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Optional

from returnn_tf.config.errors import TextDataError, TextError
from returnn_tf.config.options import from_options
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core.safe_files import path_of, wanted_by
from returnn_tf.datasets.text.lm_options import LmOptions
from returnn_tf.datasets.text.phones import PhoneOptions, PhoneSequences
from returnn_tf.datasets.text.symbols import (
    ParseOptions,
    collapse,
    parse_text,
    read_replacements,
    read_symbol_map,
    read_symbols,
)
from returnn_tf.datasets.vocabulary import Vocabulary, make_vocabulary
from returnn_tf.logging.log import log

_FORMS = "orth_vocab", "orth_symbols_file", "orth_symbols_map_file", "phone_info"
_FOR_SYMBOLS = {
    "orth_replace_map_file": None,
    "word_based": False,
    "word_end_symbol": None,
    "parse_orth_opts": None,
    "auto_replace_unknown_symbol": False,
}
_MOST_PASSES = 64
_MOST_SYMBOLS = 1 << 20


def _file_of(opts: LmOptions, option: str, where: str) -> Optional[str]:
    """Return a path from a config, where a function may return it, or None."""
    where = "%s: %s" % (where, option)
    value = getattr(opts, option)
    path = result_of_config(where, value) if callable(value) else value
    return path_of(path, where=where) if path else None


class TextToLabels:
    """Makes labels of texts.

    :ivar labels: names of the labels, by index
    """

    labels: Sequence[str]
    #: whether the labels depend on the random numbers of the epoch
    uses_rng = False
    #: whether they depend on the seed of the sequence
    uses_seed = False

    def labels_of_text(self, text: str, rng: Optional[random.Random], seed: Sequence[int]) -> list[int]:
        """Return the labels of a text without white space at both ends.

        :param rng: random numbers of the epoch, if they are used
        :param seed: of the sequence, if it is used
        :raises DataError: it contains what has no label
        """
        raise NotImplementedError("%s.labels_of_text" % type(self).__name__)

    def index(self, symbol: str) -> Optional[int]:
        """Return the label of a symbol, None if it has none."""
        raise NotImplementedError("%s.index" % type(self).__name__)


def make_text_to_labels(opts: LmOptions, where: str) -> TextToLabels:
    """Return the conversion that the options of an LmDataset choose.

    :param where: prefix of errors
    :raises ConfigError: for none, or contradicting options
    """
    given = [name for name in _FORMS if getattr(opts, name)]
    if len(given) != 1:
        found = "both %s and %s" % tuple(given[:2]) if given else "none of them"
        raise TextError("%s: give one of %s; there is %s." % (where, ", ".join(_FORMS), found))
    if given[0] not in ("orth_symbols_file", "orth_symbols_map_file"):
        for name, default in _FOR_SYMBOLS.items():
            if getattr(opts, name) not in (default, ""):
                raise TextError("%s: %s has no effect together with %s; remove one of them." % (where, name, given[0]))
    if given[0] == "phone_info":
        return PhoneText(from_options(PhoneOptions, opts.phone_info, where="%s: phone_info" % where), where)
    if opts.add_random_phone_seqs:
        raise TextError("%s: add_random_phone_seqs needs phone_info." % where)
    if given[0] == "orth_vocab":
        return VocabularyText(make_vocabulary(opts.orth_vocab, owner="%s: orth_vocab" % where))
    return SymbolText(opts, where)


class VocabularyText(TextToLabels):
    """Labels by a vocabulary, which does all of the work."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.labels = vocabulary.labels
        self.uses_seed = vocabulary.is_random

    def labels_of_text(self, text: str, rng: Optional[random.Random], seed: Sequence[int]) -> list[int]:
        """Return the labels of a text."""
        if self.uses_seed:
            self.vocabulary.set_random_seed(seed)
        return self.vocabulary.get_seq(text)

    def index(self, symbol: str) -> Optional[int]:
        """Return the label of a symbol."""
        return self.vocabulary.vocab.get(symbol)


class PhoneText(TextToLabels):
    """Labels of phonemes or of allophone states, frame by frame."""

    uses_rng = True

    def __init__(self, opts: PhoneOptions, where: str) -> None:
        self.phones = PhoneSequences(opts, "%s: phone_info" % where)
        self.labels = self.phones.labels

    def labels_of_text(self, text: str, rng: Optional[random.Random], seed: Sequence[int]) -> list[int]:
        """Return the label of each frame."""
        assert rng is not None
        return self.phones.labels_of_text(text, rng)

    def index(self, symbol: str) -> Optional[int]:
        """Return the label of a phoneme."""
        return self.labels.index(symbol) if symbol in self.labels else None


class SymbolText(TextToLabels):
    """Labels of characters or words."""

    def __init__(self, opts: LmOptions, where: str) -> None:
        self.opts = opts
        name = "orth_symbols_file" if opts.orth_symbols_file else "orth_symbols_map_file"
        path = _file_of(opts, name, where)
        if path is None:
            raise TextError("%s: the function of the symbols returns no file." % where)
        with wanted_by("%s: option %r" % (where, name)):
            table = read_symbols(path) if opts.orth_symbols_file else read_symbol_map(path)
        self.labels = table.labels
        self._index = table.ids
        self._parse_opts: ParseOptions = from_options(
            ParseOptions, opts.parse_orth_opts or {}, where="%s: parse_orth_opts" % where, none_is_absent=True
        )
        given = self._parse_opts.word_based
        self._word_based = opts.word_based if given is None else given
        if opts.word_end_symbol and self._word_based:
            raise TextError("%s: word_end_symbol is for characters, but word_based is set." % where)
        self._blank = opts.word_end_symbol or " "
        self._before = list(self._parse_opts.prefix)
        self._after = [opts.word_end_symbol] if opts.word_end_symbol else []
        if self._parse_opts.postfix is not None:
            self._after += self._parse_opts.postfix
        elif opts.seq_end_symbol is not None:
            self._after.append(opts.seq_end_symbol)
        replacements = _file_of(opts, "orth_replace_map_file", where)
        self._replacements: dict[str, list[str]] = {}
        if replacements:
            with wanted_by("%s: option 'orth_replace_map_file'" % where):
                self._replacements = read_replacements(replacements, self._parse_opts, word_based=self._word_based)
        self._logged: set[str] = set()
        self._where = where

    def index(self, symbol: str) -> Optional[int]:
        """Return the label of a symbol."""
        return self._index.get(symbol)

    def labels_of_text(self, text: str, rng: Optional[random.Random], seed: Sequence[int]) -> list[int]:
        """Return the labels of a text."""
        symbols = parse_text(text, self._parse_opts, word_based=self._word_based, blank=self._blank)
        symbols = self._before + symbols + self._after
        index = self._index
        if not self._replacements:
            try:
                return [index[symbol] for symbol in collapse(symbols, self._blank)]
            except KeyError:
                pass  # unknown symbols
        return [index[symbol] for symbol in self._known(symbols)]

    def _known(self, symbols: list[str]) -> list[str]:
        """Replace symbols; unknown ones among the results are added to the map, and all is replaced once more."""
        replacements = self._replacements
        for _ in range(_MOST_PASSES):
            symbols = [new for symbol in symbols for new in replacements.get(symbol, (symbol,))]
            symbols = collapse(symbols, self._blank)
            unknown = {symbol for symbol in symbols if symbol not in self._index}
            if not unknown:
                return symbols
            if len(symbols) > _MOST_SYMBOLS:
                break
            replacements = {**replacements, **self._for_unknown(unknown, symbols)}
        raise TextDataError("orth_replace_map_file replaces symbols in circles, e.g. %r" % sorted(unknown)[0])

    def _for_unknown(self, unknown: set[str], symbols: list[str]) -> dict[str, list[str]]:
        substitute = self.opts.unknown_symbol
        first = next(symbol for symbol in symbols if symbol in unknown)
        if not self.opts.auto_replace_unknown_symbol:
            raise TextDataError(
                "%r is not among the %d symbols. Add it, or set auto_replace_unknown_symbol" % (first, len(self.labels))
            )
        if substitute is not None and substitute not in self._index:
            raise TextDataError("%r has no label, and unknown_symbol %r has none either" % (first, substitute))
        for symbol in sorted(unknown - self._logged):
            if len(self._logged) < self.opts.log_auto_replace_unknown_symbols:
                self._logged.add(symbol)
                log.write(3, "%s: unknown symbol %r is replaced by %r" % (self._where, symbol, substitute))
        return {symbol: [] if substitute is None else [substitute] for symbol in unknown}
