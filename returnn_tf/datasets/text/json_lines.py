"""The objects of JSON-lines files by number: an index of the lines in memory, the text on disk."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from returnn_tf.config.errors import TextDataError, shown
from returnn_tf.datasets.text.lines import TextLines, lines_of_corpus


class JsonLines:
    """The lines of several files, each a JSON object.

    :param paths: of the files, which may be compressed by gzip
    :param use_cache_manager: the option of the dataset
    :raises DataError: a file is missing, empty or damaged
    """

    def __init__(self, paths: Sequence[str], *, use_cache_manager: bool):
        self._files = [lines_of_corpus(path, use_cache_manager=use_cache_manager) for path in paths]
        self._ends = list(itertools.accumulate(map(len, self._files)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def file_of(self, number: int) -> int:
        """Return which of the files has a line."""
        return bisect.bisect_right(self._ends, number)

    def _line(self, number: int) -> tuple[TextLines, int]:
        file = self.file_of(number)
        return self._files[file], number - (self._ends[file - 1] if file else 0)

    def place(self, number: int) -> str:
        """Return file and number of a line, for messages."""
        lines, index = self._line(number)
        return lines.place(index)

    def entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield number and object of each line that is not blank, in their order.

        :raises DataError: a line is no JSON, or no object; names file and line
        """
        number = 0
        for lines in self._files:
            for index, text in enumerate(lines.texts()):
                if text.strip():
                    yield number, _parsed(text, lines, index)
                number += 1

    def get(self, number: int) -> dict[str, Any]:
        """Return the object of a line, see `entries`."""
        lines, index = self._line(number)
        return _parsed(lines.text(index), lines, index)


def _parsed(text: str, lines: TextLines, index: int) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise TextDataError("%s: it is no JSON: %s" % (lines.place(index), exc)) from None
    if not isinstance(content, dict):
        text = "%s: it is %s, but each line must be a JSON object, {...}"
        raise TextDataError(text % (lines.place(index), shown(content)))
    return content
