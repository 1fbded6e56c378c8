"""Pronunciation lexicons in Bliss XML."""

from __future__ import annotations

import gzip
import xml.etree.ElementTree as ElementTree
import zlib
from typing import Any

from returnn_tf.config import DataError
from returnn_tf.datasets.core.safe_files import open_regular
from returnn_tf.datasets.text.xml_encoding import decoded


class Lexicon:
    """The phonemes and lemmas of a lexicon.

    ``phoneme_list`` has the symbols in order, ``phonemes`` maps a symbol to its index, symbol and variation, and
    ``lemmas`` an orthography to itself and its pronunciations with their scores.

    :param filename: XML, plain or compressed by gzip
    :raises DataError: it is missing or no lexicon
    """

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.phoneme_list: list[str] = []
        self.phonemes: dict[str, dict[str, Any]] = {}
        self.lemmas: dict[str, dict[str, Any]] = {}
        try:
            with open_regular(filename) as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                content: Any = gzip.GzipFile(fileobj=file) if packed else file
                self._read(content)
        except DataError:
            raise
        except (OSError, EOFError, zlib.error, ElementTree.ParseError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or exc
            raise DataError("the lexicon %r can't be read: %s" % (filename, reason)) from exc
        if not self.phonemes and not self.lemmas:
            raise DataError("%r is no lexicon: it has neither phonemes nor lemmas." % filename)

    def _read(self, file: Any) -> None:
        for _, element in ElementTree.iterparse(decoded(file)):
            if element.tag == "phoneme":
                self._add_phoneme(element)
            elif element.tag == "lemma":
                self._add_lemma(element)
            else:
                continue
            element.clear()

    def _add_phoneme(self, element: Any) -> None:
        symbol = (element.findtext("symbol") or "").strip()
        variation = (element.findtext("variation") or "context").strip()
        self.phonemes[symbol] = {"index": len(self.phonemes), "symbol": symbol, "variation": variation}
        self.phoneme_list.append(symbol)

    def _add_lemma(self, element: Any) -> None:
        phons = [
            {"phon": (phon.text or "").strip(), "score": float(phon.get("score", "0"))}
            for phon in element.findall("phon")
        ]
        for orth in element.findall("orth"):
            text = (orth.text or "").strip()
            entry = {"orth": text, "phons": phons}
            if self.lemmas.setdefault(text, entry) != entry:
                raise DataError(
                    "lexicon %r: %r has different pronunciations in several lemmas. Join these lemmas."
                    % (self.filename, text)
                )
