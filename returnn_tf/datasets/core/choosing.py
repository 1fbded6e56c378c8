"""Which sequences of a corpus are read: those of an epoch, of a list, or of a share of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError, did_you_mean
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.corpus import Corpus
from returnn_tf.datasets.core.share import Chosen

_TOGETHER = 4096
_MAX_COMPARED = 2000  # comparing spellings takes long, and a corpus can have millions of tags


class _TagTable:
    """Where the tags of a corpus are: their hashes in ascending order, 12 bytes for each.

    :param count: number of sequences
    :param tags_of: returns the tags of sequences by index
    :param last: whether a tag that several sequences have stands for the last one, else for the first one
    """

    def __init__(self, count: int, tags_of: Callable[[Sequence[int]], list[str]], *, last: bool) -> None:
        blocks = (tags_of(range(start, min(start + _TOGETHER, count))) for start in range(0, count, _TOGETHER))
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
        places = np.searchsorted(self._hashes, hashes, "right" if self._last else "left") - self._last
        indices: NDArray[np.int64] = self._order[np.clip(places, 0, len(self._order) - 1)].astype(np.int64)
        found = self._tags_of(indices.tolist())
        for position, (tag, other) in enumerate(zip(tags, found)):
            if tag != other:  # it is not there, or has the hash of another one
                indices[position] = self._of_hash(tag)
        return indices

    def _of_hash(self, tag: str) -> int:
        start, end = (int(np.searchsorted(self._hashes, hash(tag), side)) for side in ("left", "right"))
        equal: list[int] = self._order[start:end].tolist()
        same = [index for index, other in zip(equal, self._tags_of(equal)) if other == tag]
        return same[-self._last] if same else -1


class ChosenOfCorpus(Corpus):
    """Corpus indices of what is chosen; see ``base.Dataset``."""

    #: whether a tag that several sequences have stands for the last of them in lists, else for the first one
    takes_last_of_tag = False

    def __init__(self, **given: Any):
        super().__init__(**given)
        self._tag_table: Optional[_TagTable] = None

    def indices_of_tags(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return corpus indices of sequences given by tag; DataError for an unknown one."""
        if self.num_seqs is None:
            raise ConfigError(
                "%s is endless, so its sequences cannot be chosen by tag; give it num_seqs" % self._owner()
            )
        if self._tag_table is None:
            self._tag_table = _TagTable(self.num_seqs, self.tags_together, last=self.takes_last_of_tag)
        indices = self._tag_table.find(tags)
        missing = np.flatnonzero(indices < 0)
        if len(missing):
            tag, known = tags[missing[0]], self.tags_together(range(min(self.num_seqs, _MAX_COMPARED)))
            raise DataError("%s has no sequence %r. %s" % (self._owner(), tag, did_you_mean(tag, known)))
        return indices

    def chosen_order(self, epoch: int, chosen: Chosen) -> Optional[NDArray[Any]]:
        """Return the corpus indices to read, those of the share if there is one; None: endless, in corpus order.

        :raises ConfigError: the dataset is endless, but only a share is wanted
        """
        order = self.explicit_order(epoch, chosen)
        if chosen.share is None:
            return order
        if order is None:
            raise ConfigError("%s is endless, so it can't be split among processes; give it num_seqs" % self._owner())
        return chosen.share.of_order(order)

    def chosen_occurrences(self, epoch: int, chosen: Chosen) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return `chosen_order`, and how many times the epoch has each of them before, also in other shares."""
        order = self.explicit_order(epoch, chosen)
        assert order is not None
        nth = orders.occurrences(order) if chosen.nth is None else chosen.nth
        return (order, nth) if chosen.share is None else (chosen.share.of_order(order), chosen.share.of_order(nth))

    def explicit_order(self, epoch: int, chosen: Chosen) -> Optional[NDArray[Any]]:
        """Return the corpus indices that are listed, or those of the epoch; the share is not regarded."""
        if chosen.seq_list is not None and chosen.seq_order is not None:
            raise ConfigError("%s: give seq_list or seq_order, not both" % self._owner())
        if chosen.seq_list is not None:
            return self.indices_of_tags(chosen.seq_list)
        if chosen.seq_order is None:
            return self.seq_order(epoch)
        order = np.asarray(chosen.seq_order, np.int64).reshape(-1)
        for index in order:
            if index < 0 or (self.num_seqs is not None and index >= self.num_seqs):
                raise DataError("%s has no sequence at position %d, only %s" % (self._owner(), index, self.num_seqs))
        return order
