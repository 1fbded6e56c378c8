"""Reads a long list of dicts, written as Python literal, entry by entry: never executed, never whole in memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Optional, Union

from returnn_tf.config.errors import DataError, FileDataError, shown

_STRING = r"""[uU]?(?:'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")"""
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?![\w.])"
_VALUE = r"(?:%s|%s|(?:True|False|None)\b)" % (_STRING, _NUMBER)
_PAIR = r"%s\s*:\s*%s\s*" % (_STRING, _VALUE)
#: A dict of plain values; none of its parts can match in two ways, so that the time is linear.
_DICT = re.compile(r"\{\s*(?:%s(?:,\s*%s)*(?:,\s*)?)?\}" % (_PAIR, _PAIR))
_PARTS = re.compile(r"(%s)\s*:\s*(%s)" % (_STRING, _VALUE))
_TOKEN = re.compile(r"\s*(?:(%s)|([][{}(),:])|(\w[\w.+-]*|[^\s\w]))" % _VALUE)
_SPACE = re.compile(r"\s*")
_SEPARATOR = re.compile(r"\s*,\s*|\s*(?=\])")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", "'": "'", '"': '"'}
_CONSTANTS = {"True": True, "False": False, "None": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_MOST_CHARACTERS = 1 << 22  # of an entry
_DEEPEST = 20
_MOST_DIGITS = 300  # Python refuses to read much longer integers


#: Of a column: written without a backslash or an exponent.
_PLAIN = {str: r"""('[^'\\\n]*'|"[^"\\\n]*")""", float: r"([-+]?\d+\.\d*(?![\w.]))"}
_ROWS = 1 << 12  # of a table
_MOST_LAYOUTS = 64

#: Strings or floats of several dicts by key.
Columns = dict[str, list[Any]]


class _Incomplete(Exception):
    """The text read so far ends within a value."""


def read_dicts(pieces: Iterable[bytes], *, keys: Collection[str], where: str) -> Iterator[dict[str, Any]]:
    """Yield the dicts of a list, with some of their keys.

    Values are strings, integers, floats without exponent, True, False, None, and lists, tuples and dicts of these.

    :param pieces: the text in UTF-8, cut anywhere
    :param keys: what the dicts are to keep
    :param where: of the text, for errors
    :raises DataError: it is something else; names the entry
    """
    yield from _Reader(pieces, keys, where)


def read_columns(
    pieces: Iterable[bytes], *, keys: Collection[str], where: str
) -> Iterator[Union[dict[str, Any], Columns]]:
    """Yield what `read_dicts` does, but several dicts that are written alike as one of columns, which is faster.

    The first one is a single dict.
    """
    yield from _Reader(pieces, keys, where).tables()


class _Reader:
    def __init__(self, pieces: Iterable[bytes], keys: Collection[str], where: str):
        self.where = where
        self.keys = frozenset(keys)
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._start = 0
        self._ended = False
        self._number = 0
        self._names = {repr(key): key for key in keys}  # as they are written nearly always
        self._written = ""  # the last entry, if it has plain values
        self._layouts: dict[tuple[str, ...], Optional[re.Pattern[str]]] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._begin()
        while self._text[self._start : self._start + 1] != "]":
            yield self._entry()
            self._number += 1
            self._separator()
        self._end()

    def tables(self) -> Iterator[Union[dict[str, Any], Columns]]:
        """Yield single dicts, and columns of those that are written like the one before."""
        self._begin()
        while self._text[self._start : self._start + 1] != "]":
            entry = self._entry()
            layout = self._layout(entry)
            yield entry
            self._number += 1
            self._separator()
            while layout is not None and (rows := self._rows(layout)):
                yield {
                    key: list(map(float, column)) if isinstance(entry[key], float) else [text[1:-1] for text in column]
                    for key, column in zip(entry, zip(*rows))
                }
        self._end()

    def _begin(self) -> None:
        self._skip_space()
        if self._text[self._start : self._start + 1] != "[":
            found = self._text[self._start : self._start + 30]
            raise FileDataError("%s must be a list of dicts, but begins with %r" % (self.where, found))
        self._start += 1
        self._skip_space()

    def _rows(self, layout: re.Pattern[str]) -> list[tuple[str, ...]]:
        """Return the values of the next dicts of a layout that are behind each other."""
        rows: list[tuple[str, ...]] = []
        text, match_at, place = self._text, layout.match, self._start
        while len(rows) < _ROWS and (match := match_at(text, place)):
            rows.append(match.groups())
            place = match.end()
        self._start = place
        self._number += len(rows)
        if rows:
            self._skip_space()
        return rows

    def _layout(self, entry: Mapping[str, Any]) -> Optional[re.Pattern[str]]:
        """Return a pattern of dicts that are written as the last one, with the comma behind; None: there is none."""
        pairs = [(name, self._names.get(name) or _unquoted(name)) for name, _ in _PARTS.findall(self._written)]
        kinds = {key: type(value) for key, value in entry.items()}
        written = (*(name for name, _ in pairs), *(kind.__name__ for kind in kinds.values()))
        if written not in self._layouts:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[written] = None
            found = [key for _, key in pairs if key in self.keys]
            if found == list(entry) and found and all(kind in _PLAIN for kind in kinds.values()):
                values = (_PLAIN[kinds[key]] if key in kinds else _VALUE for _, key in pairs)
                items = (r"%s\s*:\s*%s\s*" % (re.escape(pair[0]), value) for pair, value in zip(pairs, values))
                self._layouts[written] = re.compile(r"\{\s*%s(?:,\s*)?\}\s*,\s*" % r",\s*".join(items))
        return self._layouts[written]

    def _end(self) -> None:
        self._start += 1
        self._skip_space()
        if self._start < len(self._text):
            raise FileDataError("%s goes on after its list: %r" % (self.where, self._text[self._start :][:30]))

    def _entry(self) -> dict[str, Any]:
        """Return the dict at the current place."""
        while True:
            match = _DICT.match(self._text, self._start)
            if match:
                self._start = match.end()
                self._written = match.group()
                return self._plain(self._written)
            self._written = ""
            try:
                value, end = self._parse(self._start, 0)
            except _Incomplete:
                if self._more():
                    continue
                raise self._error("the text ends within it. Was it copied completely?") from None
            if not isinstance(value, dict):
                raise self._error("it is %s, not a dict" % shown(value, most=100))
            self._start = end
            return {key: entry for key, entry in value.items() if key in self.keys}

    def _plain(self, text: str) -> dict[str, Any]:
        """Return the wanted items of a dict of plain values."""
        result = {}
        for name, value in _PARTS.findall(text):
            key = self._names.get(name) or _unquoted(name)
            if key in self.keys:
                result[key] = _value(value)
        return result

    def _parse(self, position: int, depth: int) -> tuple[Any, int]:
        """Return any value and the place after it."""
        match = self._token(position)
        plain, sign, _ = match.groups()
        if plain is not None:
            if match.end() == len(self._text) and not self._ended:
                raise _Incomplete
            return _value(plain), match.end()
        if sign not in _CLOSING or depth >= _DEEPEST:
            raise self._unexpected(match)
        return self._container(match.end(), sign, depth)

    def _container(self, position: int, opening: str, depth: int) -> tuple[Any, int]:
        keys: list[Any] = []
        values: list[Any] = []
        while True:
            match = self._token(position)
            if match.group(2) == _CLOSING[opening]:
                break
            if values:
                if match.group(2) != ",":
                    raise self._unexpected(match)
                position = match.end()
                match = self._token(position)
                if match.group(2) == _CLOSING[opening]:
                    break
            if opening == "{":
                if match.group(1) is None:
                    raise self._unexpected(match)
                keys.append(_value(match.group(1)))
                match = self._token(match.end())
                if match.group(2) != ":":
                    raise self._unexpected(match)
                position = match.end()
            value, position = self._parse(position, depth + 1)
            values.append(value)
        return (dict(zip(keys, values)) if opening == "{" else values), match.end()

    def _token(self, position: int) -> re.Match[str]:
        match = _TOKEN.match(self._text, position)
        if match is None:
            raise _Incomplete
        if match.group(3) is not None and not self._ended and len(self._text) - match.start(3) < _MOST_CHARACTERS:
            raise _Incomplete  # it may be the beginning of a string or a number
        return match

    def _separator(self) -> None:
        while True:
            match = _SEPARATOR.match(self._text, self._start)
            if match and match.end() < len(self._text):
                self._start = match.end()
                return
            if not self._more():
                self._skip_space()
                found = self._text[self._start : self._start + 30]
                raise FileDataError(
                    "%s: after entry %d there is %s, not ',' or ']'. Was it copied completely?"
                    % (self.where, self._number - 1, repr(found) if found else "the end")
                )

    def _skip_space(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._start)
            assert match is not None
            self._start = match.end()
            if self._start < len(self._text) or not self._more():
                return

    def _more(self) -> bool:
        """Read on; return False at the end of the text."""
        if self._ended:
            return False
        if len(self._text) - self._start > _MOST_CHARACTERS:
            raise self._error("it has more than %d characters" % _MOST_CHARACTERS)
        rest = self._text[self._start :]
        pieces = [rest]
        size = 0
        while size <= len(rest) and not self._ended:  # at least as much again, since all of it is parsed again
            piece = next(self._pieces, None)
            self._ended = piece is None
            try:
                pieces.append(self._decoder.decode(piece or b"", self._ended))
            except UnicodeDecodeError as exc:
                raise FileDataError("%s is not UTF-8 text: %s" % (self.where, exc)) from exc
            size += len(pieces[-1])
        self._text = "".join(pieces)
        self._start = 0
        return True

    def _unexpected(self, match: re.Match[str]) -> DataError:
        found = match.group().strip()
        if found in ("'", '"'):
            return self._error("a string has no end. Was the text copied completely?")
        fix = ""
        if found in ("true", "false", "null"):
            fix = ". This is JSON; write True, False, None"
        elif re.fullmatch(r"[\d.]+[eE].*", found):
            fix = ". Write it without exponent"
        return self._error("%s is not expected there%s" % (shown(found, most=100), fix))

    def _error(self, text: str) -> DataError:
        return FileDataError("%s: entry %d: %s" % (self.where, self._number, text))


def _value(text: str) -> Any:
    if text[-1] in "'\"":
        return _unquoted(text)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return float(text) if "." in text or len(text) > _MOST_DIGITS else int(text)


def _unquoted(text: str) -> str:
    start = 2 if text[0] in "uU" else 1
    return text[start:-1] if "\\" not in text else _ESCAPE.sub(_unescaped, text[start:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "xuU" and len(code) > 1:
        return chr(min(int(code[1:], 16), 0x10FFFF))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPED.get(code, match.group())  # Python keeps unknown ones, too
