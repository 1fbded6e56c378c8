"""Output file of a search: texts, or lists of texts with scores, as lines or as Python dict."""

from __future__ import annotations

import collections
import copy
import gzip
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from returnn_tf.config.errors import SearchError, did_you_mean
from returnn_tf.engine.search.labels import ArrayText
from returnn_tf.engine.support.atomic_files import write_bytes
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.engine.transcripts.formats.base import FORMATS, Format
from returnn_tf.engine.transcripts.transcript import Transcript

#: A text, or with a beam the best ones first: [(score, text), ...]
Entry = Any


class Found(NamedTuple):
    """The result for one sequence.

    :param entries: by layer
    :param scores: log score of the best hypothesis by layer; None if there was no search
    :param transcript: if the format of the output is one of transcripts
    """

    tag: str
    entries: dict[str, Entry]
    scores: dict[str, Any]
    transcript: Optional[Transcript] = None


class SearchOutput:
    """Writer of ``search_output_file`` in the format ``search_output_file_format``.

    :param path: compressed if it ends in ``.gz``
    :param file_format: ``txt``: a line for each sequence; ``py``: a dict from tag to text; ``tsv``: lines of tag, score
        and text, with a beam one for each hypothesis; or a format of transcripts, see `FORMATS`: of those that hold
        one sequence, the path is a folder, with a file for each
    :param layers: with several, each entry is a dict from layer to its text; py only
    :raises ConfigError: the file exists, its folder does not, or the format is unknown or unsuitable for the layers
    """

    def __init__(self, path: str, file_format: str, layers: Sequence[str]) -> None:
        if file_format not in formats():
            raise SearchError(
                "search_output_file_format: unknown %r. %s" % (file_format, did_you_mean(file_format, formats()))
            )
        if len(layers) > 1 and file_format != "py":
            raise SearchError(
                "search_output_file_format = %r supports one layer, but search_output_layer names %d. "
                "Set search_output_file_format = 'py'." % (file_format, len(layers))
            )
        if os.path.exists(path):
            raise SearchError("search_output_file %r exists already. Remove it, or choose another." % path)
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise SearchError(
                "search_output_file %r: the folder %r can't be written. Create it first." % (path, folder)
            )
        self.path = path
        self.name = file_format
        #: The format of transcripts; None for another one.
        self.of_transcripts: Optional[Format] = None
        if file_format in _FORMATS:
            self._format, self.content = _FORMATS[file_format]
        else:
            self.of_transcripts = FORMATS[file_format]
            self.content = self.of_transcripts.content
        self._layers = list(layers)

    def of_layers(self, layers: Sequence[str]) -> SearchOutput:
        """Return the writer for other layers, as many as before."""
        other = copy.copy(self)
        other._layers = list(layers)
        return other

    def check(self, transcript: Transcript) -> None:
        """Check that a transcript can be written, as soon as it is there: not after the search for all of them.

        :raises DataError: its tag or a word can't be written in this format, or its times are not known
        """
        if self.of_transcripts is not None:
            collections.deque(self.of_transcripts.lines(transcript), maxlen=0)

    def write(self, rows: Iterable[Found]) -> None:
        """Write the file, or each file of a folder, atomically; rows may have further layers.

        :raises DataError: a transcript can't be written in this format
        """
        first = self._layers[0]
        if self.of_transcripts is not None:
            transcripts = [row.transcript for row in rows if row.transcript is not None]
            if self.of_transcripts.of_one:
                self.of_transcripts.write_files(transcripts, self.path)
                return
            buffer = io.StringIO()
            self.of_transcripts.write(transcripts, buffer)
            text = buffer.getvalue()
        else:
            text = self._format([(row.tag, self._entry(row.entries), row.scores[first]) for row in rows])
        content = text.encode("utf8")
        if self.path.endswith(".gz"):
            content = gzip.compress(content, mtime=0)  # reproducible: the same content yields the same file
        try:
            write_bytes(self.path, content)
        except OSError as exc:
            raise not_writable("search_output_file %r" % self.path, exc, topic="search") from exc

    def _entry(self, entries: dict[str, Entry]) -> Entry:
        if len(self._layers) > 1:
            return {layer: entries[layer] for layer in self._layers}
        return entries[self._layers[0]]


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


#: A result, its entry in the file, and its score.
_Rows = Sequence[tuple[str, Entry, Any]]


def _lines(rows: _Rows) -> str:
    return "".join(_line(entry) + "\n" for _, entry, _ in rows)


def _dict(rows: _Rows) -> str:
    return as_python_dict([(tag, entry) for tag, entry, _ in rows])


def _table(rows: _Rows) -> str:
    lines = []
    for tag, entry, best in rows:
        for score, text in [(best, entry)] if isinstance(entry, str) else entry:
            columns = (tag, "" if score is None else str(score), text)
            lines.append("\t".join(column.translate(_ESCAPED) for column in columns) + "\n")
    return "".join(lines)


_ESCAPED = str.maketrans({"\t": "\\t", "\n": "\\n"})
#: By name: what makes the text of the file, and what it holds, for the log.
_FORMATS: dict[str, tuple[Callable[[_Rows], str], str]] = {
    "txt": (_lines, "in the order of the dataset, without tags (search_output_file_format 'tsv' or 'py' has them)"),
    "py": (_dict, "as a Python dict by tag"),
    "tsv": (_table, "a line each: tag, log score, text"),
}


def formats() -> list[str]:
    """Return the names of all formats."""
    return [*_FORMATS, *(name for name in FORMATS if name not in _FORMATS)]
