"""Vocabularies of characters and of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from returnn_tf.config.errors import TextDataError
from returnn_tf.config.options import option
from returnn_tf.datasets.vocabulary.base import SharedOptions, Special, SpecialOptions, Vocabulary
from returnn_tf.datasets.vocabulary.files import LabelTable

_BYTES = tuple(map(chr, range(256)))


class CharacterTargets(Vocabulary):
    """Each character of a text is a label.

    >>> CharacterTargets(labels=["@", " ", "a"]).get_seq("a aé")
    [2, 1, 2, 0]
    """

    @dataclass
    class Options(SharedOptions):
        unknown_label: Special = option(
            "@",
            help="label or id of characters that are not in the vocabulary; None or -1: such a character is an error",
        )

    separator = ""

    def pieces(self, sentence: str) -> list[str]:
        """Return the characters."""
        return list(sentence)


class Utf8ByteTargets(Vocabulary):
    """The bytes of a text in UTF-8 are its ids.

    >>> Utf8ByteTargets().get_seq("aé")
    [97, 195, 169]
    """

    @dataclass
    class Options(SpecialOptions):
        unknown_label: None = option(None, help="there are no unknown bytes")

    positional = ("seq_postfix",)

    @classmethod
    def labels_of(cls, options: Mapping[str, Any], where: str) -> list[str]:
        """Return the characters of the bytes, in Latin-1."""
        return list(_BYTES)

    def _table(self) -> LabelTable:
        return LabelTable(_BYTES, {label: index for index, label in enumerate(_BYTES)})

    def get_seq(self, sentence: str) -> list[int]:
        """Return the bytes of a text, with ``seq_postfix``."""
        return list(sentence.encode("utf8")) + self.seq_postfix

    def get_seq_labels(self, seq: Iterable[int]) -> str:
        """Decode bytes; DataError if they are not UTF-8."""
        try:
            return bytes(int(index) for index in seq).decode("utf8")
        except (UnicodeDecodeError, ValueError) as exc:
            raise TextDataError("%s: these labels are no UTF-8 text: %s" % (self.where, exc)) from None
