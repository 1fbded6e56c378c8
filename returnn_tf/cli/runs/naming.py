"""Short names of runs, and tables with a column for each."""

from __future__ import annotations

import os
from collections.abc import Sequence

from returnn_tf.config import ConfigError

Row = tuple[str, Sequence[str]]

_WIDEST = 44  # characters of a value; the rest is cut, unless all is asked for


def split_name(argument: str) -> tuple[str, str]:
    """Split ``NAME=PATH``; the name is "" if there is none, or if a file has that whole name."""
    name, equals, path = argument.partition("=")
    if not equals or os.path.exists(argument):
        return "", argument
    if not name or not path:
        raise ConfigError("%r: expected RUN or NAME=RUN" % argument)
    return name, path


def short_names(paths: Sequence[str]) -> list[str]:
    """Return what distinguishes the paths: their parts without the common first and last ones."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    while len(parts) > 1 and all(len(each) > 1 for each in parts) and len({each[0] for each in parts}) == 1:
        parts = [each[1:] for each in parts]
    while len(parts) > 1 and all(len(each) > 1 for each in parts) and len({each[-1] for each in parts}) == 1:
        parts = [each[:-1] for each in parts]
    names = [os.sep.join(each) for each in parts] if len(paths) > 1 else [parts[0][-1]]
    return names if len(set(names)) == len(names) else ["%d %s" % each for each in enumerate(names, 1)]


def table(header: Sequence[str], rows: Sequence[Row], *, full: bool = False) -> str:
    """Return an aligned table.

    :param header: title of the first column, then the names of the runs
    :param rows: (first cell, those of the runs)
    :param full: whether long cells are shown in full
    """
    cells = [list(header), *([name, *(_cut(value, full) for value in values)] for name, values in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * min(sum(widths) + 2 * (len(widths) - 1), 120), *lines[1:]])


def _cut(value: str, full: bool) -> str:
    value = value.replace("\n", " ")
    return value if full or len(value) <= _WIDEST else value[: _WIDEST - 3] + "..."
