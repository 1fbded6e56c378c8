"""Output file of a search: texts, or lists of texts with scores, as lines or as Python dict."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.engine.search.labels import ArrayText
from returnn_tf.engine.support.atomic_files import write_bytes
from returnn_tf.engine.support.disk_errors import not_writable

#: A text, or with scores the best ones first: [(score, text), ...]
Entry = Any
Rows = Iterable[tuple[str, dict[str, Entry]]]  # sequence tag, layer -> entry


class SearchOutput:
    """Writer of ``search_output_file`` in the format ``search_output_file_format``.

    :param path: compressed if it ends in ``.gz``
    :param file_format: ``txt``: a line for each sequence; ``py``: a dict from tag to text
    :param layers: with several, each entry is a dict from layer to its text; py only
    :raises ConfigError: the file exists, its folder does not, or the format is unknown or unsuitable for the layers
    """

    def __init__(self, path: str, file_format: str, layers: Sequence[str]) -> None:
        if file_format not in _FORMATS:
            raise ConfigError(
                "search_output_file_format: unknown %r. %s" % (file_format, did_you_mean(file_format, _FORMATS))
            )
        if len(layers) > 1 and file_format != "py":
            raise ConfigError(
                "search_output_file_format = %r supports one layer, but search_output_layer names %d. "
                "Set search_output_file_format = 'py'." % (file_format, len(layers))
            )
        if os.path.exists(path):
            raise ConfigError("search_output_file %r exists already. Remove it, or choose another." % path)
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise ConfigError(
                "search_output_file %r: the folder %r can't be written. Create it first." % (path, folder)
            )
        self.path = path
        self._format = _FORMATS[file_format]
        self._layers = list(layers)

    def write(self, rows: Rows) -> None:
        """Write the file atomically."""
        several = len(self._layers) > 1
        text = self._format([(tag, found if several else found[self._layers[0]]) for tag, found in rows])
        content = text.encode("utf8")
        if self.path.endswith(".gz"):
            content = gzip.compress(content, mtime=0)  # reproducible: the same content yields the same file
        try:
            write_bytes(self.path, content)
        except OSError as exc:
            raise not_writable("search_output_file %r" % self.path, exc) from exc


def _text(rows: Sequence[tuple[str, Entry]]) -> str:
    return "".join(_line(entry) + "\n" for _, entry in rows)


def _line(entry: Entry) -> str:
    if isinstance(entry, str):
        return entry.replace("\n", "\\n")  # one line for each sequence, whatever the labels are
    return "[%s]" % ", ".join(_pair(pair) for pair in entry)


def as_python_dict(rows: Sequence[tuple[str, Entry]]) -> str:
    """Return the text of a file with a dict from tag to entry, in Python syntax."""
    return "{\n%s}\n" % "".join("%r: %s,\n" % (tag, _value(entry)) for tag, entry in rows)


def _value(entry: Entry) -> str:
    if isinstance(entry, str):
        return _quoted(entry)
    if isinstance(entry, Mapping):
        return "{\n%s}" % "".join("%r: %s,\n" % (layer, _value(value)) for layer, value in entry.items())
    return "[\n%s]" % "".join(_pair(pair) + ",\n" for pair in entry)


def _pair(pair: tuple[Any, str]) -> str:
    score, text = pair
    number = str(score)  # the fewest digits that identify the float32
    return "(%s, %s)" % (number if number.lstrip("-")[:1].isdigit() else "float(%r)" % number, _quoted(text))


def _quoted(text: str) -> str:
    """Return a text in the syntax of Python; an array is in it already."""
    return str(text) if isinstance(text, ArrayText) else repr(text)


_FORMATS: dict[str, Callable[[list[tuple[str, Entry]]], str]] = {"txt": _text, "py": as_python_dict}
