"""``from returnn.datasets.cached2 import CachedDataset2``: datasets that make one sequence after the other."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.datasets.basic import Dataset, DatasetSeq
from returnn_tf.compat.user_datasets import cached

register_compat(__name__, "returnn.datasets.cached2", "CachedDataset2")

__all__ = ["CachedDataset2", "Dataset", "DatasetSeq"]


class CachedDataset2(cached.CachedDataset2, Dataset):
    """Makes its sequences one after the other in ``_collect_single_seq``."""
