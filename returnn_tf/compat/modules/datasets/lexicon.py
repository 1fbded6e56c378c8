"""``from returnn.datasets.lm import Lexicon, english_cleaners`` (once LmDataset): names for functions of configs."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.datasets.text.bliss import Lexicon
from returnn_tf.datasets.text.orth import (
    basic_cleaners,
    collapse_whitespace,
    convert_to_ascii,
    english_cleaners,
    english_cleaners_keep_special,
    expand_abbreviations,
    get_remove_chars,
    get_replace,
    lowercase,
    lowercase_keep_special,
    normalize_numbers,
    transliteration_cleaners,
)

register_compat(__name__, "returnn.datasets.lm", "LmDataset")

__all__ = [
    "Lexicon",
    "basic_cleaners",
    "collapse_whitespace",
    "convert_to_ascii",
    "english_cleaners",
    "english_cleaners_keep_special",
    "expand_abbreviations",
    "get_remove_chars",
    "get_replace",
    "lowercase",
    "lowercase_keep_special",
    "normalize_numbers",
    "transliteration_cleaners",
]
