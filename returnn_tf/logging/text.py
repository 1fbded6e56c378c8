"""Text for display: durations, sizes, escaped text of others, and colour on terminals."""

from __future__ import annotations

import datetime
import math
import os
import unicodedata
from typing import Any

#: Characters that control terminals, or the order in which they show letters.
_CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")
_HARMLESS = "\u00ad\u200c\u200d"  # within words of some scripts


def hms(seconds: float) -> str:
    """Return hours, minutes and seconds, as ``0:28:58``."""
    whole = max(0, int(seconds)) if math.isfinite(seconds) else 0
    return "%d:%02d:%02d" % (whole // 3600, whole // 60 % 60, whole % 60)


def date_text(now: datetime.datetime) -> str:
    """Return a date with the time, as ``2026-03-21 12:34:56``."""
    return now.strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, whose plural ends in s: ``1 layer``, ``1,200 parameters``."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def bytes_text(count: float) -> str:
    """Return a number of bytes in a readable unit, as ``1.5GB``."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return "%.1f%s" % (count, unit) if unit != "B" else "%d%s" % (count, unit)
        count /= 1024
    return "%.1fGB" % count


def printable(text: str, keep: str = "") -> str:
    """Return untrusted text in printable form: control characters as the escapes of Python.

    Else a tag or a label could change a terminal, hide what was printed before, or look like a line of this program.

    :param keep: characters that stay
    """
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode("ascii")
        if unicodedata.category(letter) in _CONTROLS and letter not in _HARMLESS and letter not in keep
        else letter
        for letter in text
    )


_COLORS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "bold": 1, "dim": 2}


def is_terminal(stream: Any) -> bool:
    """Return whether the stream is a terminal."""
    return bool(getattr(stream, "isatty", lambda: False)())


def wants_color(stream: Any) -> bool:
    """Return whether to use colour: only on a terminal, and not with NO_COLOR set or a dumb terminal."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, color: str, enabled: bool = True) -> str:
    """Return the text in a colour, if enabled.

    :param color: red, green, yellow, blue, magenta, cyan, bold or dim
    """
    return "\x1b[%dm%s\x1b[0m" % (_COLORS[color], text) if enabled else text
