"""Vocabularies: text as ids of labels, and back."""

from returnn_tf.datasets.vocabulary.base import Vocabulary
from returnn_tf.datasets.vocabulary.bpe import BytePairEncoding, SamplingBytePairEncoding
from returnn_tf.datasets.vocabulary.files import LabelTable, read_labels, read_table
from returnn_tf.datasets.vocabulary.huggingface import HuggingFaceTokenizer
from returnn_tf.datasets.vocabulary.make import VOCABULARIES, labels_of, make_vocabulary, vocab_labels
from returnn_tf.datasets.vocabulary.pieces import SentencePieces
from returnn_tf.datasets.vocabulary.units import CharacterTargets, Utf8ByteTargets

__all__ = [
    "VOCABULARIES",
    "BytePairEncoding",
    "CharacterTargets",
    "HuggingFaceTokenizer",
    "LabelTable",
    "SamplingBytePairEncoding",
    "SentencePieces",
    "Utf8ByteTargets",
    "Vocabulary",
    "labels_of",
    "make_vocabulary",
    "read_labels",
    "read_table",
    "vocab_labels",
]
