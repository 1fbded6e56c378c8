"""The objects of JSON-lines files by number: an index of the lines in memory, the text on disk."""

from __future__ import annotations

import bisect
import itertools
import json
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
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


class StoredObjects:
    """Objects of many files in one temporary file without a name, by number; 16 bytes of memory for each."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="returnn_tf_text_")
        weakref.finalize(self, self._file.close)  # datasets are not closed
        self._ends = array("q", [0])
        self._places = array("q")

    def __len__(self) -> int:
        return len(self._places)

    def add(self, content: Mapping[str, Any], place: int) -> None:
        """Append an object; to be followed by `finish`.

        :param place: a number to find it by, see `place`
        :raises DataError: the disk is full
        """
        try:
            self._ends.append(self._ends[-1] + self._file.write(json.dumps(content).encode()))
        except OSError as exc:
            raise self._error(exc) from exc
        self._places.append(place)

    def finish(self) -> None:
        """Write what is in memory; DataError if the disk is full."""
        try:
            self._file.flush()
        except OSError as exc:
            raise self._error(exc) from exc

    @staticmethod
    def _error(exc: OSError) -> TextDataError:
        text = "a temporary file in %r cannot be written: %s; TMPDIR chooses another folder"
        return TextDataError(text % (tempfile.gettempdir(), exc.strerror or exc))

    def place(self, number: int) -> int:
        """Return the number with which an object was added."""
        return self._places[number]

    def get(self, number: int) -> dict[str, Any]:
        """Return an object; threads may do so at the same time."""
        start, end = self._ends[number], self._ends[number + 1]
        found: dict[str, Any] = json.loads(os.pread(self._file.fileno(), end - start, start))
        return found


def _parsed(text: str, lines: TextLines, index: int) -> dict[str, Any]:
    try:
        content = json.loads(text)
        if "\\u" in text:
            json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as exc:
        raise TextDataError("%s: it is no JSON: %s" % (lines.place(index), exc)) from None
    if not isinstance(content, dict):
        text = "%s: it is %s, but each line must be a JSON object, {...}"
        raise TextDataError(text % (lines.place(index), shown(content)))
    return content
