"""Terminals: whether a stream is one, and colour."""

from __future__ import annotations

import os
from typing import Any

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
