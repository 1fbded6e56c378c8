"""``from returnn.datasets.util.vocabulary import Vocabulary`` and others: vocabularies, for functions of configs."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.datasets import vocabulary
from returnn_tf.datasets.vocabulary import (
    BytePairEncoding,
    CharacterTargets,
    HuggingFaceTokenizer,
    SamplingBytePairEncoding,
    SentencePieces,
    Utf8ByteTargets,
    make_vocabulary,
)

register_compat(__name__, "returnn.datasets.util.vocabulary")

__all__ = [
    "BytePairEncoding",
    "CharacterTargets",
    "HuggingFaceTokenizer",
    "SamplingBytePairEncoding",
    "SentencePieces",
    "Utf8ByteTargets",
    "Vocabulary",
]


class Vocabulary(vocabulary.Vocabulary):
    """Vocabulary with the function of RETURNN that makes one of another class."""

    @classmethod
    def create_vocab(cls, **options: Any) -> vocabulary.Vocabulary:
        """Create one from the options of a vocabulary in a config, including ``class``."""
        return make_vocabulary(options)

    @classmethod
    def create_vocab_from_labels(cls, labels: Any, **options: Any) -> vocabulary.Vocabulary:
        """Create one from the labels by id."""
        return cls(labels=labels, **{"unknown_label": None, **options})
