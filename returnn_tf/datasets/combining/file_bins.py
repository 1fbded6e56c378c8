"""Files of a corpus, and how they are distributed over sub-epochs of about the same size."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.errors import shown
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core import safe_files

_FORMS = "a list, a function that returns one, or the name of a .txt (one file per line), .json or .py file with one"


def read_file_list(given: Any, *, where: str) -> list[Any]:
    """Return the entries of the option ``files``; an entry is a file, or a nested list or dict of files.

    :param given: the entries, a function that returns them, or a file with them
    :param where: how errors begin
    :raises ConfigError: for another form, or no entries
    :raises DataError: the file is missing or damaged
    """
    if callable(given):
        given = result_of_config(where, given)
    if isinstance(given, str):
        given = _entries_of_file(given, where)
    if not isinstance(given, (list, tuple)):
        raise ConfigError("%s is %s, but must be %s" % (where, shown(given), _FORMS))
    if not given:
        raise ConfigError("%s is empty" % where)
    return list(given)


def _entries_of_file(path: str, where: str) -> Any:
    suffix = os.path.splitext(path)[1]
    if suffix not in (".txt", ".json", ".py"):
        raise ConfigError("%s is %r, but must be %s" % (where, path, _FORMS))
    with safe_files.wanted_by(where):
        text = safe_files.read_text(path)
    if suffix == ".txt":
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        return [line for line in lines if line]
    try:
        return json.loads(text) if suffix == ".json" else ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as exc:
        raise DataError("%s: file %r holds no list: %s" % (where, path, exc)) from None


def size_of_entry(entry: Any, *, where: str) -> int:
    """Return the bytes of all files of an entry; DataError for a missing one."""
    size = 0
    for path in _files_of(entry):
        try:
            size += os.path.getsize(os.fspath(path))  # a number would be that of an open file
        except (OSError, TypeError, ValueError) as exc:
            raise DataError(
                "%s: file %s cannot be found: %s (current directory: %s)"
                % (where, shown(path), getattr(exc, "strerror", None) or exc, os.getcwd())
            ) from None
    return size


def _files_of(entry: Any) -> Iterator[Any]:
    if isinstance(entry, Mapping):
        entry = list(entry.values())
    if isinstance(entry, (list, tuple)):
        for part in entry:
            yield from _files_of(part)
    else:
        yield entry


def bins_by_size(sizes: Sequence[int], num_bins: int) -> list[list[int]]:
    """Distribute entries over bins of about the same size, keeping their order; no bin is empty.

    A bin is closed where that brings it closest to its share of what was left when it was begun.

    :param sizes: of the entries, at least as many as bins
    :return: the indices of the entries of each bin
    """
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    number, filled, left = 0, 0, sum(sizes)
    share = left / num_bins
    for index, size in enumerate(sizes):
        untouched = num_bins - number - bool(bins[number])
        left -= size  # what is left behind this entry
        begins_next = False
        ends = False
        if len(sizes) - index <= untouched:  # as many entries as empty bins
            begins_next = bool(bins[number])
        elif number < num_bins - 1 and filled + size > share:
            ends = not bins[number] or abs(filled + size - share) <= abs(filled - share)
            begins_next = not ends
        if begins_next:
            number, filled = number + 1, 0
            share = left / (num_bins - number)
        bins[number].append(index)
        filled += size
        if ends:
            number, filled = number + 1, 0
            share = left / (num_bins - number)
    return bins
