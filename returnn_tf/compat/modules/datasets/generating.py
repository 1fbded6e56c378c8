"""``from returnn.datasets.generating import GeneratingDataset, Vocabulary, ...``."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.datasets.basic import Dataset, DatasetSeq
from returnn_tf.compat.modules.datasets.cached2 import CachedDataset2
from returnn_tf.compat.modules.datasets.vocabulary import (
    BytePairEncoding,
    CharacterTargets,
    SamplingBytePairEncoding,
    SentencePieces,
    Utf8ByteTargets,
    Vocabulary,
)
from returnn_tf.compat.user_datasets import cached
from returnn_tf.datasets.synthetic.static import StaticDataset
from returnn_tf.datasets.synthetic.tasks import Task12AXDataset

register_compat(__name__, "returnn.datasets.generating", "GeneratingDataset")

__all__ = [
    "BytePairEncoding",
    "CharacterTargets",
    "Dataset",
    "DatasetSeq",
    "GeneratingDataset",
    "SamplingBytePairEncoding",
    "SentencePieces",
    "StaticDataset",
    "Task12AXDataset",
    "Utf8ByteTargets",
    "Vocabulary",
]


class GeneratingDataset(cached.GeneratingDataset, CachedDataset2):
    """Makes its sequences in ``generate_seq``."""
