"""The objects of JSON-lines files by number: an index of the lines in memory, the text on disk."""

from __future__ import annotations

import bisect
import itertools
import json
import re
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import TextDataError, shown
from returnn_tf.datasets.files.index_file import SharedIndex, named, shared_index
from returnn_tf.datasets.text.lines import TextLines, local_list

#: Of a column: strings without a backslash, and numbers.
_STRING, _NUMBER = r'"([^"\\\x00-\x1f]*)"', r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
#: Other values: those that `json` takes, but for lists, objects, and characters that are written as two.
_ESCAPE = r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'
_VALUE = r'(?:"[^"\\\x00-\x1f]*(?:%s[^"\\\x00-\x1f]*)*"|%s|true|false|null)' % (_ESCAPE, _NUMBER.replace("(", "(?:", 1))
_BLANK = r"[ \t\r]*"
_LINES_AT_ONCE = 1 << 10
_MOST_OPEN = 64  # files
_MOST_LAYOUTS = 64

#: Key -> str, or float for any number.
Kinds = Mapping[str, type]
_Layouts = dict[tuple[Any, ...], Optional[re.Pattern[str]]]


@dataclass(frozen=True)
class JsonTable:
    """Objects in successive lines that are written alike.

    :param columns: strings or floats by key
    :param count: number of objects
    """

    columns: Mapping[str, list[Any]]
    count: int

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the objects, as far as they have a column."""
        return (dict(zip(self.columns, values)) for values in zip(*self.columns.values()))


class JsonLines:
    """The lines of several files, each a JSON object.

    :param paths: of the files, which may be compressed by gzip
    :param use_cache_manager: the option of the dataset
    :param shared: other processes will read them, too
    :raises DataError: a file is missing, empty or damaged
    """

    def __init__(self, paths: Sequence[str], *, use_cache_manager: bool, shared: bool = True):
        self._paths = paths
        #: the files, or their local copies
        self.local_paths = [local_list(path, use_cache_manager=use_cache_manager) for path in paths]
        index = shared_index("json-lines", self.local_paths, None, self._found) if shared else self._found()
        parts: list[dict[str, NDArray[Any]]] = [{} for _ in paths]
        for name, part in index.arrays.items():
            number, _, rest = name.partition(".")
            parts[int(number)][rest] = part
        indexes = map(SharedIndex, parts, index.facts["files"])
        self._files = [self._lines_of(file, found) for file, found in enumerate(indexes)]
        #: the first line behind each file
        self.ends = list(itertools.accumulate(map(len, self._files)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def _lines_of(self, file: int, found: Optional[SharedIndex] = None) -> TextLines:
        local, name, keep_open = self.local_paths[file], self._paths[file], len(self._paths) <= _MOST_OPEN
        return TextLines(local, skip_empty=True, name=name, shared=False, found=found, keep_open=keep_open)

    def _found(self) -> SharedIndex:
        """Find the lines of all files."""
        arrays: dict[str, NDArray[Any]] = {}
        facts = []
        for file in range(len(self._paths)):
            found = self._lines_of(file).found
            arrays.update(named(str(file), found.arrays))
            facts.append(found.facts)
        return SharedIndex(arrays, {"files": facts})

    def file_of(self, number: int) -> int:
        """Return which of the files has a line."""
        return bisect.bisect_right(self.ends, number)

    def _line(self, number: int) -> tuple[TextLines, int]:
        file = self.file_of(number)
        return self._files[file], number - (self.ends[file - 1] if file else 0)

    def place(self, number: int) -> str:
        """Return file and number of a line, for messages."""
        lines, index = self._line(number)
        return lines.place(index)

    def entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield number and object of each line that is not blank, in their order.

        :raises DataError: a line is no JSON, or no object; names file and line
        """
        start = 0
        for lines in self._files:
            for index, text in enumerate(lines.texts()):
                if text.strip():
                    yield start + index, _parsed(text, lines, index)
            start += len(lines)

    @staticmethod
    def _entries(lines: TextLines, start: int, first: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for index in range(first, first + count):
            text = lines.text(index)
            if text.strip():
                yield start + index, _parsed(text, lines, index)

    def tables(self, kinds: Kinds) -> Iterator[tuple[int, Union[dict[str, Any], JsonTable]]]:
        """Yield what `entries` does, but successive objects that are written alike as a table, which is faster.

        :param kinds: the keys that become columns, where the values are of these kinds
        """
        layouts: _Layouts = {}
        start = 0
        for lines in self._files:
            for first, count, block in lines.blocks(_LINES_AT_ONCE):
                columns = _columns(block, count, kinds, layouts)
                if columns is None:
                    yield from self._entries(lines, start, first, count)
                else:
                    yield start + first, JsonTable(columns, count)
            start += len(lines)

    def get(self, number: int) -> dict[str, Any]:
        """Return the object of a line, see `entries`."""
        lines, index = self._line(number)
        return _parsed(lines.text(index), lines, index)


def _columns(block: bytes, count: int, kinds: Kinds, layouts: _Layouts) -> Optional[dict[str, list[Any]]]:
    """Return the values of all lines of a block by key, if they are written as the first one.

    :param count: of the lines
    :param layouts: patterns that were made before
    """
    try:
        text = block.decode("utf8")
        example = json.loads(text[: text.index("\n")]) if count > 1 else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(example, dict):
        return None
    written = tuple((key, type(value) if key in kinds else None) for key, value in example.items())
    if written not in layouts:
        if len(layouts) >= _MOST_LAYOUTS:
            layouts.clear()
        layouts[written] = _layout(written, kinds)
    layout = layouts[written]
    rows = [] if layout is None else layout.findall(text)
    if len(rows) != count:
        return None
    keys = [key for key in example if key in kinds]
    columns = [rows] if len(keys) == 1 else zip(*rows)
    return {key: list(column if kinds[key] is str else map(float, column)) for key, column in zip(keys, columns)}


def _layout(written: Sequence[tuple[str, Optional[type]]], kinds: Kinds) -> Optional[re.Pattern[str]]:
    """Return a pattern of the lines with these keys; None: values are of another kind, or none is wanted.

    :param written: each key with the type of its value, or None if any will do
    """
    items = []
    for key, kind in written:
        wanted = kinds.get(key)
        if wanted is not None and kind not in ((str,) if wanted is str else (int, float)):
            return None
        value = _VALUE if wanted is None else _STRING if wanted is str else _NUMBER
        items.append(_BLANK.join(["", re.escape(json.dumps(key)), ":", value, ""]))
    if all(key not in kinds for key, _ in written):
        return None
    return re.compile(r"^%s\{%s\}%s$" % (_BLANK, ",".join(items), _BLANK), re.MULTILINE)


class StoredObjects:
    """Objects of many files in one array, by number: their text, and 16 bytes for each.

    :param index: of `ObjectWriter`
    """

    def __init__(self, index: Mapping[str, NDArray[Any]]):
        self._content, self._ends, self._places = (index[name] for name in ("content", "ends", "places"))

    def place(self, number: int) -> int:
        """Return the number with which an object was added."""
        return int(self._places[number])

    def get(self, number: int) -> dict[str, Any]:
        """Return an object; threads may do so at the same time."""
        start, end = self._ends[number : number + 2].tolist()
        found: dict[str, Any] = json.loads(self._content[start:end].tobytes())
        return found


class ObjectWriter:
    """Collects objects in a temporary file without a name."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="returnn_tf_text_")
        weakref.finalize(self, self._file.close)  # also where a line is an error
        self._ends = array("q", [0])
        self._places = array("q")

    def add(self, content: Mapping[str, Any], place: int) -> None:
        """Append an object.

        :param place: a number to find it by, see `StoredObjects.place`
        :raises DataError: the disk is full
        """
        try:
            self._ends.append(self._ends[-1] + self._file.write(json.dumps(content).encode()))
        except OSError as exc:
            raise self._error(exc) from exc
        self._places.append(place)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that `StoredObjects` needs; DataError if the disk is full."""
        try:
            self._file.flush()
        except OSError as exc:
            raise self._error(exc) from exc
        content: Any = np.zeros(0, np.uint8)
        if self._ends[-1]:
            content = np.memmap(self._file, np.uint8, "r")
        return {"content": content, "ends": np.asarray(self._ends), "places": np.asarray(self._places)}

    @staticmethod
    def _error(exc: OSError) -> TextDataError:
        text = "a temporary file in %r cannot be written: %s; TMPDIR chooses another folder"
        return TextDataError(text % (tempfile.gettempdir(), exc.strerror or exc))


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
