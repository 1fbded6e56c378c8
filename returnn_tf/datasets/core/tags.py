"""The tags of a corpus: where each is, and those of lists that it lacks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from returnn_tf.logging.log import log

_BLOCK = 4096


def warn_of_unknown(owner: str, name: str, path: object, listed: Collection[str], known: Iterable[str]) -> None:
    """Log that a file with tags to keep has some that the corpus lacks, if it has any that are there.

    :param owner: prefix of the message
    :param name: of the option with the file
    :param path: of the file
    """
    unknown = set(listed).difference(known)
    if 0 < len(unknown) < len(listed):
        log.warn(
            "%s: %d of the %d tags in %s %r are not in the corpus, e.g. %r."
            % (owner, len(unknown), len(listed), name, path, min(unknown))
        )


class TagTable:
    """Where the tags of a corpus are: their hashes in ascending order, 12 bytes for each.

    :param count: number of sequences
    :param tags_of: returns the tags of sequences by index
    :param last: whether a tag that several sequences have stands for the last one, else for the first one
    """

    def __init__(self, count: int, tags_of: Callable[[Sequence[int]], list[str]], *, last: bool) -> None:
        blocks = (tags_of(range(start, min(start + _BLOCK, count))) for start in range(0, count, _BLOCK))
        hashes = np.fromiter(map(hash, itertools.chain.from_iterable(blocks)), np.int64, count)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._order = order.astype(np.int32 if count < 1 << 31 else np.int64)
        self._tags_of = tags_of
        self._last = last

    def find(self, tags: Sequence[str]) -> NDArray[np.int64]:
        """Return corpus indices of tags; -1 for one that is not there."""
        if not len(self._hashes):
            return np.full(len(tags), -1, np.int64)
        hashes = np.fromiter(map(hash, tags), np.int64, len(tags))
        ascending = np.argsort(hashes)  # neighbours in the table are found in a fraction of the time
        places = np.empty(len(tags), np.int64)
        places[ascending] = np.searchsorted(self._hashes, hashes[ascending], "right" if self._last else "left")
        places -= self._last
        indices: NDArray[np.int64] = self._order[np.clip(places, 0, len(self._order) - 1)].astype(np.int64)
        found = self._tags_of(indices.tolist())
        for position, (tag, other) in enumerate(zip(tags, found) if found != list(tags) else ()):
            if tag != other:  # it is not there, or has the hash of another one
                indices[position] = self._of_hash(tag)
        return indices

    def _of_hash(self, tag: str) -> int:
        start, end = (int(np.searchsorted(self._hashes, hash(tag), side)) for side in ("left", "right"))
        equal: list[int] = self._order[start:end].tolist()
        same = [index for index, other in zip(equal, self._tags_of(equal)) if other == tag]
        return same[-self._last] if same else -1
