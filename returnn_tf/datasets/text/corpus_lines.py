"""The lines of the files of a corpus by their number in all of them, and their tags."""

from __future__ import annotations

import bisect
import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core.safe_files import path_of, read_seq_tags, wanted_by
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.text.lines import LineTags, TextLines
from returnn_tf.datasets.text.lm_options import LmOptions
from returnn_tf.logging.log import log


class CorpusLines:
    """Files as one corpus; they are opened when they are first needed.

    :param opts: of the dataset
    :param where: how errors begin
    :raises DataError: a file given by its path is missing
    """

    def __init__(self, opts: LmOptions, where: str) -> None:
        self._opts = opts
        self._where = where
        self._files: list[TextLines] = []
        self._ends: list[int] = []  # number of lines up to the end of each file
        self._tags: Optional[list[str]] = None
        self._line_tags = LineTags("line-" if opts.tag_prefix is None else opts.tag_prefix, where)
        if not callable(opts.corpus_file):
            self._paths()

    def _paths(self) -> list[str]:
        given: Any = self._opts.corpus_file
        where = "%s: corpus_file" % self._where
        given = result_of_config(where, given) if callable(given) else given
        paths = [path_of(path, where=where) for path in _as_list(given)]
        if not paths:
            raise ConfigError("%s: corpus_file names no file." % self._where)
        for path in paths:
            if not os.path.isfile(path):
                problem = "is not a file" if os.path.exists(path) else "does not exist"
                raise DataError(
                    "%s: corpus_file %r %s (current directory: %s)." % (self._where, path, problem, os.getcwd())
                )
        return paths

    def _open(self) -> None:
        if self._ends:
            return
        files = [self._opened(path) for path in self._paths()]
        ends = np.cumsum([len(file) for file in files])
        self._tags = self._read_tags(files)
        limit = self._opts.debug_limit_line_count
        self._files = files
        self._ends = [int(end) if limit is None else min(int(end), limit) for end in ends]

    def _opened(self, path: str) -> TextLines:
        local = local_copy(path, wanted=self._opts.use_cache_manager)
        lines = TextLines(local, skip_empty=self._opts.skip_empty_lines, keep_open_end=False)
        if lines.has_open_end and not lines.keeps_open_end:
            # as in RETURNN, so that numbers of sequences and lists of tags stay the same
            log.warn("%s: file %r does not end with a newline, so its last line is not read" % (self._where, path))
        return lines

    def _read_tags(self, files: list[TextLines]) -> Optional[list[str]]:
        given = self._opts.seq_list_file
        if not given:
            return None
        where = "%s: option 'seq_list_file'" % self._where
        if isinstance(given, str):
            with wanted_by(where):
                tags = read_seq_tags(given)
            self._check_number(given, tags, "the corpus", sum(len(file) for file in files))
            return tags
        if len(given) != len(files):
            text = "%s: there are %d files in seq_list_file, but %d in corpus_file."
            raise ConfigError(text % (self._where, len(given), len(files)))
        tags = []
        for path, file in zip(given, files):
            with wanted_by(where):
                more = read_seq_tags(path)
            self._check_number(path, more, "file %r" % file.path, len(file))
            tags += more
        return tags

    def _check_number(self, path: str, tags: list[str], what: str, num_lines: int) -> None:
        if len(tags) != num_lines:
            text = "%s: seq_list_file %r has %d tags, but %s has %d sequences%s."
            kept = " (empty lines do not count)" if self._opts.skip_empty_lines else ""
            raise DataError(text % (self._where, path, len(tags), what, num_lines, kept))

    def __len__(self) -> int:
        self._open()
        return self._ends[-1]

    def _locate(self, index: int) -> tuple[TextLines, int]:
        self._open()
        if len(self._files) == 1:
            return self._files[0], index
        number = bisect.bisect_right(self._ends, index)
        return self._files[number], index - (self._ends[number - 1] if number else 0)

    def text(self, index: int) -> str:
        """Return a line."""
        file, local = self._locate(index)
        return file.text(local)

    def place(self, index: int) -> str:
        """Return file and number of a line, for messages."""
        file, local = self._locate(index)
        return file.place(local)

    def file(self, index: int) -> str:
        """Return the path of the file."""
        return self._locate(index)[0].path

    def num_bytes(self) -> NDArray[Any]:
        """Return the number of bytes of each line."""
        self._open()
        joined = np.concatenate([file.num_bytes for file in self._files])[: self._ends[-1]]
        return joined.astype(np.int64)  # orders negate it

    def tag(self, index: int) -> str:
        """Return the tag of a line."""
        self._open()
        return self._line_tags.tag(index) if self._tags is None else self._tags[index]

    def indices_of_tags(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return the numbers in tags that were made of them; DataError for other tags."""
        return self._line_tags.indices(tags, len(self))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
