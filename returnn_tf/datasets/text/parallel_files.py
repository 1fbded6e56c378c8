"""The files of a parallel corpus: two texts, line by line, and the vocabularies of their words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.text.lines import TextLines
from returnn_tf.datasets.vocabulary.files import read_ids

SOURCE, TARGET = "source", "target"


class WordIds:
    """The ids of the words of one key.

    :param path: pickled dict from word to id
    :param unknown_label: the word for others; None: these are an error
    :raises ConfigError: ``unknown_label`` is not in the vocabulary
    :raises DataError: the file is missing or no vocabulary
    """

    def __init__(self, path: str, unknown_label: Optional[str], where: str) -> None:
        self.path = path
        self._ids = read_ids(path)
        self._unknown = None if unknown_label is None else self._ids.get(unknown_label)
        if unknown_label is not None and self._unknown is None:
            raise ConfigError("%s: unknown_label %r is not in the vocabulary %r." % (where, unknown_label, path))

    @property
    def spec(self) -> DataSpec:
        """Return the format of the key; its labels are unknown if the ids have gaps."""
        names = {index: word for word, index in sorted(self._ids.items())}
        dim = max(names) + 1
        labels = tuple(names[index] for index in range(dim)) if len(names) == dim else None
        return DataSpec(dim=dim, ndim=1, dtype="int32", labels=labels)

    def ids(self, words: list[str]) -> list[int]:
        """Return the ids of words; DataError for an unknown one without ``unknown_label``."""
        table, unknown = self._ids, self._unknown
        if unknown is not None:
            return [table.get(word, unknown) for word in words]
        for word in words:
            if word not in table:
                raise DataError("%r is not in the vocabulary %r. Give unknown_label" % (word, self.path))
        return [table[word] for word in words]


def unknown_label_of(given: Any, key: str) -> Optional[str]:
    """Return the option ``unknown_label`` for a key; it may be a dict by key."""
    return given.get(key) if isinstance(given, Mapping) else given


class ParallelFiles:
    """The lines of the files ``source.<postfix>`` and ``target.<postfix>``, opened when they are first needed.

    :param folder: of the files; ``.gz`` is appended to names that are not there
    :param postfix: end of their names
    :param sides: "source", and "target" if there are targets
    :param where: how errors begin
    :raises DataError: a file is missing
    """

    def __init__(self, folder: str, postfix: str, sides: list[str], *, local: bool, where: str) -> None:
        self._where = where
        self._local = local
        self.paths = {side: self._find(os.path.join(folder, "%s.%s" % (side, postfix))) for side in sides}
        self._lines: dict[str, TextLines] = {}

    def _find(self, path: str) -> str:
        for name in (path, path + ".gz"):
            if os.path.isfile(name):
                return name
        raise DataError(
            "%s: there is neither %r nor %r (current directory: %s)."
            % (self._where, path, os.path.basename(path) + ".gz", os.getcwd())
        )

    def _open(self) -> dict[str, TextLines]:
        if not self._lines:
            lines = {
                side: TextLines(local_copy(path, wanted=self._local), skip_empty=False)
                for side, path in self.paths.items()
            }
            counts = {side: len(text) for side, text in lines.items()}
            if len(set(counts.values())) > 1:
                raise DataError(
                    "%s: %s have different numbers of lines."
                    % (self._where, " and ".join("%r (%d)" % (self.paths[side], n) for side, n in counts.items()))
                )
            self._lines = lines
        return self._lines

    def __len__(self) -> int:
        return len(self._open()[SOURCE])

    def text(self, side: str, index: int) -> str:
        """Return a line of one of the texts, without white space at both ends."""
        return self._open()[side].text(index).strip()

    def place(self, side: str, index: int) -> str:
        """Return file and number of a line, for messages."""
        return self._open()[side].place(index)

    def num_words(self, side: str) -> NDArray[np.int64]:
        """Return the number of words in each line."""
        return self._open()[side].num_words()
