"""The audio files that a command line names: paths, lists of paths in text files, and the standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.datasets.core.safe_files import read_lines

#: Suffixes of files that are lists.
_LISTS = (".txt", ".list", ".lst")
STDIN = "-"


def audio_files(names: Sequence[str]) -> list[str]:
    """Return the paths of audio files in the order given; whether they exist is seen when they are read.

    :param names: audio files; text files (.txt, .list, .lst) with a path in each line, from the working directory or,
        if it is not there, from the folder of the list; "-": paths on the standard input, one a line
    :raises ConfigError: a folder is named, or nothing
    :raises DataError: a list is missing, is no text, or names no file
    """
    found: list[str] = []
    for name in names:
        if not name:
            raise CommandError("transcribe: the name of an audio file is empty")
        if name == STDIN:
            found += _checked(_of_stdin(), "the standard input")
        elif name.lower().endswith(_LISTS):
            folder = os.path.dirname(name)
            lines = _checked(read_lines(name), "%r" % name)
            found += [line if os.path.exists(line) else _beside(line, folder) for line in lines]
        elif os.path.isdir(name):
            raise CommandError(
                "transcribe: %r is a folder. Name the files: %s" % (name, os.path.join(name, "*.wav").replace("'", ""))
            )
        else:
            found.append(name)
    return found


def _beside(line: str, folder: str) -> str:
    path = os.path.join(folder, line)
    return path if os.path.exists(path) else line


def _of_stdin() -> list[str]:
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CommandDataError(
            "transcribe: the standard input is no text. It takes the names of audio files, one a line; audio itself "
            "is read from files."
        )
    return [line.strip() for line in text.splitlines()]


def _checked(lines: Sequence[str], source: str) -> list[str]:
    """Return the lines that are not empty; DataError if there is none."""
    found = [line for line in lines if line]
    if not found:
        raise CommandDataError("transcribe: %s names no audio file. It needs a path in each line." % source)
    return found
