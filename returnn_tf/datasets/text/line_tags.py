"""Tags made of a prefix and the number of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError


class LineTags:
    """Tags such as "line-7", without a table of all of them.

    :param prefix: before the number, which counts from 0
    :param where: how errors begin
    """

    def __init__(self, prefix: str, where: str) -> None:
        self._prefix = prefix
        self._where = where

    def tag(self, index: int) -> str:
        """Return the tag of a line."""
        return self._prefix + str(index)

    def indices(self, tags: Sequence[str], num_lines: int) -> NDArray[Any]:
        """Return the numbers in tags; DataError for a tag that no line has."""
        found = []
        for tag in tags:
            digits = str(tag)[len(self._prefix) :]
            number = int(digits) if digits.isascii() and digits.isdecimal() else num_lines
            if number >= num_lines or self.tag(number) != tag:
                raise DataError(
                    "%s has no sequence %r, only %r to %r." % (self._where, tag, self.tag(0), self.tag(num_lines - 1))
                )
            found.append(number)
        return np.asarray(found, np.int64)
