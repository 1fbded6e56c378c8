"""The interface of a format, and the table of all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Callable, TextIO

from returnn_tf.config.errors import DataError
from returnn_tf.config.registry import Registry
from returnn_tf.engine.support.atomic_files import write_text
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.engine.transcripts.transcript import Piece, Transcript


@dataclass(frozen=True)
class Format:
    """How transcripts are written.

    :param lines: the pieces of text of one transcript, one after the other
    :param content: what a file holds, for logs and tables
    :param suffix: of the names of files
    :param needs_times: whether words or labels without times are an error
    :param of_one: whether a file holds a single transcript, since the format has no name for it
    :param has_all: whether it holds all hypotheses of a transcript, else the best one
    """

    lines: Callable[[Transcript], Iterator[str]]
    content: str
    suffix: str
    needs_times: bool = False
    of_one: bool = False
    has_all: bool = False

    def write(self, transcripts: Iterable[Transcript], file: TextIO) -> None:
        """Write transcripts, each as soon as it is there.

        :raises DataError: times are missing, a tag or word can't be written, or there are several of a format `of_one`
        """
        first = None
        for transcript in transcripts:
            if self.of_one and first is not None:
                raise DataError(
                    "%r and %r can't be in one file: a file of this format (%s) holds one transcript. Write a file for "
                    "each." % (first, transcript.tag, self.suffix),
                    topic="search",
                )
            first = transcript.tag
            file.write("".join(self.lines(transcript)))
            file.flush()

    def write_files(self, transcripts: Iterable[Transcript], folder: str) -> int:
        """Write a file ``<tag><suffix>`` for each transcript into a folder, which is made; return their number.

        Characters of the tag that are separators of paths are written as ``_``.

        :raises DataError: see `write`; or two tags have the same file
        """
        written: dict[str, str] = {}
        for transcript in transcripts:
            name = re.sub(r"[/\\\0]", "_", transcript.tag) + self.suffix
            if name in written:
                raise DataError(
                    "Sequences %r and %r have the same file %r. Rename one of them."
                    % (written[name], transcript.tag, name),
                    topic="search",
                )
            written[name] = transcript.tag
            path = os.path.join(folder, name)
            try:
                os.makedirs(folder, exist_ok=True)
                write_text(path, "".join(self.lines(transcript)))
            except OSError as exc:
                raise not_writable("File %r" % path, exc, topic="search") from exc
        return len(written)


FORMATS: Registry[Format] = Registry("format of transcripts", __name__.rpartition(".")[0])

_Lines = Callable[[Transcript], Iterator[str]]


def register_format(
    name: str,
    content: str,
    suffix: str,
    *,
    needs_times: bool = False,
    of_one: bool = False,
    has_all: bool = False,
) -> Callable[[_Lines], _Lines]:
    """Decorate the function ``lines`` of a format, see `Format`."""

    def decorate(lines: _Lines) -> _Lines:
        FORMATS.add(Format(lines, content, suffix, needs_times, of_one, has_all), name, owner=lines)
        return lines

    return decorate


def timed(pieces: Iterable[Piece], transcript: Transcript) -> Iterator[tuple[Piece, float, float]]:
    """Return labels or words with their starts and ends.

    :raises DataError: one has none
    """
    for piece in pieces:
        if piece.start is None or piece.end is None:
            raise DataError(
                "Sequence %r: %r has no time, but the format needs times. Write another format, e.g. jsonl, or see "
                "which searches know times: docs/guide/words-times-confidence.md." % (transcript.tag, piece.text),
                topic="search",
            )
        yield piece, piece.start, piece.end


def column(text: str, transcript: Transcript, what: str, reason: str = "blanks separate the columns") -> str:
    """Return a text as one column of a line.

    :raises DataError: it is empty or has white space
    """
    if not text or any(char.isspace() for char in text):
        raise DataError(
            "Sequence %r: the %s %r can't be written in this format: %s. Rename it, or write another format, "
            "e.g. jsonl." % (transcript.tag, what, text, reason),
            topic="search",
        )
    return text
