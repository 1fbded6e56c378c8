"""Which sequences of a corpus are read: those of an epoch, of a list, or of a share of them."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError, did_you_mean
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.corpus import Corpus
from returnn_tf.datasets.core.share import Chosen

_MAX_COMPARED = 2000  # comparing spellings takes long, and a corpus can have millions of tags


class ChosenOfCorpus(Corpus):
    """Corpus indices of what is chosen; see ``base.Dataset``."""

    def __init__(self, **given: Any):
        super().__init__(**given)
        self._tag_to_index: Optional[dict[str, int]] = None

    def indices_of_tags(self, tags: SequenceOf[str]) -> NDArray[Any]:
        """Return corpus indices of sequences given by tag; DataError for an unknown one."""
        if self.num_seqs is None:
            raise ConfigError(
                "%s is endless, so its sequences cannot be chosen by tag; give it num_seqs" % self._owner()
            )
        if self._tag_to_index is None:
            tags_of_corpus = self.tags_together(range(self.num_seqs))
            self._tag_to_index = dict(zip(reversed(tags_of_corpus), reversed(range(self.num_seqs))))
        table = self._tag_to_index
        for tag in tags:
            if tag not in table:
                raise DataError(
                    "%s has no sequence %r. %s" % (self._owner(), tag, did_you_mean(tag, list(table)[:_MAX_COMPARED]))
                )
        return np.asarray([table[tag] for tag in tags], np.int64)

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
