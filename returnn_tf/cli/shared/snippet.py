"""A line of a text with a caret below the part that a message is about, as compilers show it."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Sequence

from returnn_tf.config.places import Span
from returnn_tf.logging.text import printable

_TAB = 4
_LEAST_COLUMNS = 20
_USUAL_COLUMNS = 120
_CUT = "..."


def snippet(span: Span, lines: Sequence[str], width: int) -> str:
    """Return file, line and column of a part of a text, its first line, and carets below the part.

    A line that is wider than the terminal is cut on both sides of the part. Tabs become blanks; a wide letter takes two
    columns, a combining one none.

    :param lines: of the file
    :param width: of the terminal, in columns
    """
    line = lines[span.line - 1]
    end = span.end_column if span.end_line == span.line else len(line.rstrip()) + 1
    before, marked = _shown(line[: span.column - 1]), _shown(line[span.column - 1 : end - 1])
    after = _shown(line[end - 1 :].rstrip())
    number = str(span.line)
    margin = " " * len(number)
    room = max(_LEAST_COLUMNS, width - len(number) - 3)
    before, marked, after = _fitted(before, marked, after, room)
    return "\n".join(
        (
            "%s--> %s:%d:%d" % (margin, span.file, span.line, span.column),
            "%s |" % margin,
            "%s | %s%s%s" % (number, before, marked, after),
            "%s | %s%s" % (margin, " " * columns(before), "^" * max(1, columns(marked))),
        )
    )


def columns_of_terminal() -> int:
    """Return the width of the terminal; without one, that of a usual one."""
    return shutil.get_terminal_size((_USUAL_COLUMNS, 24)).columns


def columns(text: str) -> int:
    """Return the number of columns that a text without tabs takes on a terminal."""
    return sum(map(_columns_of, text))


def _columns_of(letter: str) -> int:
    if unicodedata.combining(letter) or letter in "\u200c\u200d\u00ad":
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _shown(text: str) -> str:
    return printable(text.replace("\t", " " * _TAB))


def _fitted(before: str, marked: str, after: str, room: int) -> tuple[str, str, str]:
    """Return the parts of a line, cut to ``room`` columns; the beginning of the middle one remains."""
    if columns(before + marked + after) <= room:
        return before, marked, after
    if columns(marked) > room // 2:
        marked, after = _beginning(marked, room // 2), ""
    left = room - columns(marked)
    kept_after = min(columns(after), max(left // 3, left - columns(before)))
    if columns(after) > kept_after:
        after = _beginning(after, kept_after)
    left -= columns(after)
    if columns(before) > left:
        before = _beginning(before[::-1], left)[::-1]
    return before, marked, after


def _beginning(text: str, room: int) -> str:
    """Return the beginning of a text with dots behind it, in at most ``room`` columns."""
    while text and columns(text) > room - len(_CUT):
        text = text[:-1]
    return text + _CUT[: max(room, 0)]
