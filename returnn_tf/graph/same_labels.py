"""Axes whose entries are the same labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from returnn_tf.tensor import Data, Dim


class SameLabels(NamedTuple):
    """Two axes of labels, in which an index means the same; if one has more labels, they are at its end.

    :param blank: the index of the blank of CTC or of a transducer in ``one``, if a layer or loss knows it
    """

    one: Dim
    other: Dim
    blank: Optional[int] = None


def same_labels(one: Data, other: Data, blank: Optional[int] = None) -> Iterator[SameLabels]:
    """Yield that scores of labels, or labels, and other ones have the same labels; nothing if one has no labels.

    :param blank: index in ``one``; negative: from its end
    """
    dims = [data.feature_dim if data.sparse_dim is None else data.sparse_dim for data in (one, other)]
    if dims[0] is not None and dims[1] is not None and dims[0].size is not None:
        yield SameLabels(dims[0], dims[1], None if blank is None else blank % dims[0].size)
