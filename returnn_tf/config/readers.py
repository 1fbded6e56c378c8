"""Converters of one setting to int, float, bool, list, ...: the same setting can be typed or text.

Settings of Python and JSON configs are Python values ("typed"). Settings of "key value" files, and of the command line
if no config has set the key before, are `RawSetting`: the reader decides what they mean.
Every reader raises ``ValueError`` with what it expected; `returnn_tf.config.Config` adds key and place.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Callable, Optional, TypeVar

from returnn_tf.config.option_types import shown_with_kind

TRUE_WORDS = ("true", "yes", "on")
FALSE_WORDS = ("false", "no", "off")
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class RawSetting:
    """A setting that has no Python type yet. Commas separate the entries of a list."""

    text: str

    @property
    def parts(self) -> list[str]:
        """Return the entries; one if there is no comma. A list may also be spelled as in Python: ``[1,2]``."""
        value = self.decoded() if self.text.strip()[:1] in ("[", "(") else None
        return [str(entry) for entry in value] if isinstance(value, (list, tuple)) else self.text.split(",")

    @property
    def first(self) -> str:
        """Return the first entry, which readers of a single value take."""
        return (self.parts or [""])[0]

    def decoded(self) -> Any:
        """Return the Python value if the text is a Python literal, else the text itself."""
        try:
            return ast.literal_eval(self.text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return self.text


def first_of(value: Any) -> Any:
    """Return the first entry of a list or tuple, anything else unchanged."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ValueError("the list is empty")
        return value[0]
    return value


def read_int(value: Any) -> int:
    """Read an int; a float or a string of a typed config is refused, so that nothing is truncated silently."""
    if isinstance(value, RawSetting):
        return _parsed(int, "a whole number", value.first)
    value = first_of(value)
    if not isinstance(value, int):
        raise ValueError("expected a whole number, got %s" % _shown(value))
    return value


def read_float(value: Any) -> float:
    """Read a float or an int (kept as an int); strings that hold a number are accepted."""
    if isinstance(value, RawSetting):
        return _parsed(float, "a number", value.first)
    value = first_of(value)
    if isinstance(value, str):
        return _parsed(float, "a number", value)
    if not isinstance(value, (int, float)):
        raise ValueError("expected a number, got %s" % _shown(value))
    return value


def read_bool(value: Any) -> Optional[bool]:
    """Read a bool; as text also true/yes/on, false/no/off and ints. None for an empty text."""
    if isinstance(value, RawSetting):
        return _bool_of_text(value.first)
    value = first_of(value)
    if not isinstance(value, int):
        raise ValueError("expected True or False, got %s" % _shown(value))
    return bool(value)


def read_str(value: Any) -> str:
    """Read the value as one string; the entries of a list are joined by commas."""
    if isinstance(value, RawSetting):
        return value.text
    if isinstance(value, (list, tuple)):
        return ",".join(str(v) for v in value)
    return str(value)


def read_text(value: Any) -> str:
    """Read a name or a path: like `read_str`, but a dict or function is refused."""
    if isinstance(value, dict) or callable(value):
        raise ValueError("expected a string, got %s" % _shown(value))
    return read_str(value)


def read_any(value: Any) -> Any:
    """Return the Python value; a text becomes the Python literal that it holds, else a string."""
    return value.decoded() if isinstance(value, RawSetting) else value


def read_list(value: Any) -> list[Any]:
    """Read a list; a single value becomes a list of one entry. The entries of a text stay strings."""
    if isinstance(value, RawSetting):
        return value.parts
    return list(value) if isinstance(value, (list, tuple)) else [value]


def read_str_list(value: Any) -> list[str]:
    """Read a list of strings; a single value becomes a list of one entry."""
    return [str(entry) for entry in read_list(value)]


def read_int_list(value: Any) -> list[int]:
    """Read a list of ints."""
    return [read_int(RawSetting(v) if isinstance(value, RawSetting) else _scalar(v)) for v in read_list(value)]


def read_float_list(value: Any) -> list[float]:
    """Read a list of numbers; unlike in `read_float`, strings in a typed list are refused."""
    if isinstance(value, RawSetting):
        return [_parsed(float, "a number", v) for v in value.parts]
    for entry in read_list(value):
        if not isinstance(entry, (int, float)):
            raise ValueError("expected a list of numbers, got %s in it" % _shown(entry))
    return read_list(value)


def read_bool_or_other(value: Any) -> Any:
    """Read a bool if the text spells one, else return the value itself (or its first entry)."""
    if isinstance(value, RawSetting):
        try:
            return _bool_of_text(value.first)
        except ValueError:
            return value.first
    return first_of(value)


def read_int_pair(value: Any) -> tuple[int, int]:
    """Read two ints: a list or tuple of two, ``"50:25"``, or one int that counts twice."""
    if isinstance(value, str) and ":" in value:
        value = RawSetting(value)
    if isinstance(value, RawSetting):
        entries: list[Any] = [_parsed(int, "two whole numbers as in 50:25", v) for v in value.text.split(":")]
    else:
        entries = read_list(value)
    if len(entries) == 1:
        entries = entries * 2
    if len(entries) != 2 or not all(isinstance(v, int) for v in entries):
        raise ValueError("expected a whole number or two, got %s" % _shown(value))
    return entries[0], entries[1]


def _scalar(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        raise ValueError("expected a flat list, got %s in it" % _shown(value))
    return value


def _bool_of_text(text: str) -> Optional[bool]:
    word = text.strip().lower()
    if not word:
        return None
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    return bool(_parsed(int, "true or false", text))


def _parsed(kind: Callable[[str], N], expected: str, text: str) -> N:
    try:
        return kind(text)
    except ValueError:
        raise ValueError("expected %s, got %r" % (expected, text)) from None


def _shown(value: Any) -> str:
    if isinstance(value, RawSetting):
        return repr(value.text)
    return shown_with_kind(value, most=100)
