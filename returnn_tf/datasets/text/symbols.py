"""Transcriptions as symbols: characters or words, and symbols as indices."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable as AnyCallable
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional, Union

from returnn_tf.config.errors import TextDataError
from returnn_tf.config.options import option
from returnn_tf.datasets.core.safe_files import read_text
from returnn_tf.datasets.vocabulary.files import LabelTable, read_table, table_of_dict, table_of_lines

#: A path, or a function that returns it.
LazyPath = Union[None, str, os.PathLike[str], AnyCallable[..., Any]]

_DICT = re.compile(r"\s*\{\s*(['\"].*?['\"]\s*:\s*-?\d+\s*[,}]|\})", re.DOTALL)
_LOOKED_AT = 1024


@dataclass
class ParseOptions:
    """The options in ``parse_orth_opts``: how a text becomes symbols."""

    prefix: list[str] = option(default=(), help="symbols before the text")
    postfix: Optional[list[str]] = option(None, help="symbols after the text; default: seq_end_symbol")
    remove_chars: str = option("(){}", help="characters that are removed")
    collapse_spaces: bool = option(True, help="replace white space by single blanks, none at both ends")
    final_strip: bool = option(True, help="remove white space at both ends")
    upper_case_special: bool = option(True, help="write [special] symbols in upper case")
    word_based: Optional[bool] = option(None, help="symbols are words; default: word_based of the dataset")
    square_brackets_for_specials: bool = option(True, help="text in [...] is one symbol")


def parse_text(text: str, opts: ParseOptions, *, word_based: bool, blank: str = " ") -> list[str]:
    """Return the symbols of a text, without prefix and postfix.

    :param blank: the symbol for blanks between words, if the symbols are characters
    """
    for char in opts.remove_chars:
        text = text.replace(char, "")
    if opts.collapse_spaces:
        text = " ".join(text.split())
    if opts.final_strip:
        text = text.strip()
    if "[" in text and opts.square_brackets_for_specials:
        symbols = _with_specials(text, opts, word_based, blank)
    else:
        symbols = _plain_symbols(text, word_based, blank)
    return symbols[1:] if word_based and text[:1].isspace() else symbols


def _plain_symbols(text: str, word_based: bool, blank: str) -> list[str]:
    if word_based:
        return re.split(r"\s", text) if text else []
    return [blank if char == " " else char for char in text]


def _with_specials(text: str, opts: ParseOptions, word_based: bool, blank: str) -> list[str]:
    """Return the symbols of a text with [special] ones, which may contain others; the last one may lack its end.

    What follows the end of a special symbol without a blank belongs to it if the symbols are words.
    """
    symbols: list[str] = []
    for part, special in _bracketed(text):
        if special:
            if symbols and not symbols[-1]:
                del symbols[-1]
            symbols.append(part.upper() if opts.upper_case_special else part)
            continue
        more = _plain_symbols(part, word_based, blank)
        if word_based and symbols:
            symbols[-1] += more[0]
            del more[0]
        symbols += more
    return symbols


def _bracketed(text: str) -> Iterable[tuple[str, bool]]:
    """Split a text at outer brackets; yields its parts with whether they stand in brackets, without empty parts."""
    depth = start = 0
    for match in re.finditer(r"[\[\]]", text):
        if match.group() == "[":
            if depth == 0 and match.start() > start:
                yield text[start : match.start()], False
            if depth == 0:
                start = match.start()
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                yield text[start : match.end()], True
                start = match.end()
    if start < len(text):
        yield text[start:], depth > 0


def collapse(symbols: list[str], blank: str) -> list[str]:
    """Join neighbouring blanks."""
    if blank not in symbols:
        return symbols
    return [symbol for i, symbol in enumerate(symbols) if symbol != blank or not i or symbols[i - 1] != blank]


def read_symbols(path: str) -> LabelTable:
    """Read a file of symbols, one per line; DataError if there are none or one occurs twice."""
    return table_of_lines(read_text(path), "orth_symbols_file %r" % path)


def read_symbol_map(path: str) -> LabelTable:
    """Read a map from symbols to indices, which has to cover 0, 1, 2, ...; several symbols may share an index.

    :param path: a pickled dict, a dict as Python literal or JSON, or lines "symbol index"; ``.gz`` allowed
    :raises DataError: it is no such map
    :raises ConfigError: the indices have gaps
    """
    if path.endswith((".pkl", ".pkl.gz")):
        return read_table(path)
    text = read_text(path)
    if _DICT.match(text[:_LOOKED_AT]):
        return read_table(path)
    where = "orth_symbols_map_file %r" % path
    table: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        parts = line.split(None, 1)
        if not parts:
            continue
        if len(parts) != 2 or not parts[1].strip().isdecimal():
            raise TextDataError("%s, line %d: expected 'symbol index', got %r." % (where, number, line[:60]))
        symbol, index = parts[0], int(parts[1])
        if table.setdefault(symbol, index) != index:
            before = table[symbol]
            raise TextDataError(
                "%s, line %d: %r has the index %d, but before %d." % (where, number, symbol, index, before)
            )
    return table_of_dict(table, where)


def read_replacements(path: str, opts: ParseOptions, *, word_based: bool) -> dict[str, list[str]]:
    """Read a map from symbols to what replaces them, a JSON dict of texts; an empty text removes the symbol.

    :raises DataError: it is no such map
    """
    given = read_text(path)
    try:
        content = json.loads(given)
    except (ValueError, RecursionError) as exc:
        raise TextDataError("orth_replace_map_file %r is no JSON: %s" % (path, exc)) from None
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        raise TextDataError("orth_replace_map_file %r must hold a dict from symbols to texts." % path)
    return {symbol: parse_text(text, opts, word_based=word_based) for symbol, text in content.items()}
