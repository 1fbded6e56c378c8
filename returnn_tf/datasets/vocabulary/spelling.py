"""Words from labels: pieces of BPE, of SentencePiece and of tokenizers, characters, bytes, or words as they are.

A label adds characters to a text in which blanks are the borders of words. A word starts with the first label that
adds to it and ends with the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

_BPE_CONTINUED = "@@"  # at the end of a piece that does not end a word
_PIECE_BEGIN = "\u2581"  # of SentencePiece: a blank before the piece
_WORDPIECE_CONTINUED = "##"  # at the begin of a piece that does not begin a word
_BYTE_BLANK = "\u0120"  # the blank, in the characters that tokenizers of bytes write for bytes
#: Names of the label between words of characters.
SPACES = frozenset([" ", "[space]", "[SPACE]", "<space>", "<SPACE>"])
_BYTES = [chr(byte) for byte in range(256)]
#: All white space but what is a byte of UTF-8 in a text of bytes.
_BLANKS = frozenset(" \t\n\r\v\f")


class Spelling:
    """How the labels of a vocabulary make up words; decided by all of its labels.

    :param names: by index; None: labels are words
    :param characters: whether each label is a character; default: if all names are, or all others than a space and
        those in brackets (``<s>``)

    >>> Spelling(["th@@", "e", "cat"]).spans(["th@@", "e", "cat"])
    [('the', 0, 2), ('cat', 2, 3)]
    """

    def __init__(self, names: Optional[Sequence[str]], characters: Optional[bool] = None) -> None:
        names = names or ()
        self._decoded = list(names) == _BYTES
        table = None if self._decoded else _table_of_bytes(names)
        if table is not None:
            self._decoded = True
            self._added: Callable[[str], str] = lambda name: "".join(table.get(char, char) for char in name)
        elif any(name.startswith(_PIECE_BEGIN) for name in names):
            self._added = lambda name: name.replace(_PIECE_BEGIN, " ")
        elif any(name.endswith(_BPE_CONTINUED) for name in names):
            self._added = lambda name: name[: -len(_BPE_CONTINUED)] if name.endswith(_BPE_CONTINUED) else name + " "
        elif any(name.startswith(_WORDPIECE_CONTINUED) and len(name) > len(_WORDPIECE_CONTINUED) for name in names):
            self._added = _of_word_piece
        elif _are_characters(names) if characters is None else characters:
            self._added = lambda name: " " if name in SPACES else name
        else:
            self._added = lambda name: name + " "

    def spans(self, labels: Sequence[str]) -> list[tuple[str, int, int]]:
        """Return (word, its first label, behind its last label) of each word in names of labels."""
        found: list[tuple[list[str], int, int]] = []
        inside = False
        for index, label in enumerate(labels):
            for char in self._added(label):
                if char in _BLANKS or (char.isspace() and not self._decoded):
                    inside = False
                    continue
                if not inside:
                    found.append(([], index, index))
                    inside = True
                chars, first, _ = found[-1]
                chars.append(char)
                found[-1] = (chars, first, index + 1)
        return [(self._text("".join(chars)), first, past) for chars, first, past in found]

    def added(self, label: str) -> Optional[str]:
        """Return what a label adds to the text; None if that are bytes which are no characters by themselves."""
        added = self._added(label)
        try:
            return added.encode("latin1").decode("utf8") if self._decoded else added
        except UnicodeDecodeError:
            return None

    def begins_word(self, label: str) -> bool:
        """Return whether no label before this one belongs to its word, whatever it is."""
        return self._added(label)[:1] in _BLANKS

    def ends_word(self, label: str) -> bool:
        """Return whether no label after this one belongs to its word, whatever it is."""
        return self._added(label)[-1:] in _BLANKS

    def _text(self, chars: str) -> str:
        return chars.encode("latin1", errors="ignore").decode("utf8", errors="replace") if self._decoded else chars


def _of_word_piece(name: str) -> str:
    is_continued = name.startswith(_WORDPIECE_CONTINUED) and len(name) > len(_WORDPIECE_CONTINUED)
    return name[len(_WORDPIECE_CONTINUED) :] if is_continued else " " + name


def _are_characters(names: Sequence[str]) -> bool:
    """Return whether labels are characters; without a space, labels in brackets tell that they are other units."""
    if not names:
        return False
    others = [name for name in names if len(name) != 1]
    return not others or (
        not SPACES.isdisjoint(names) and all(name in SPACES or name[:1] + name[-1:] in ("<>", "[]") for name in others)
    )


def _table_of_bytes(names: Sequence[str]) -> Optional[dict[str, str]]:
    """Return the bytes, as characters of Latin-1, by what a byte-level tokenizer (Radford et al. 2019) writes for them.

    None if the labels are not those of one. Printable bytes stand for themselves, the others are numbered from 256 on.
    """
    if not any(name.startswith(_BYTE_BLANK) for name in names):
        return None
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): chr(byte) for byte in printable},
        **{chr(256 + i): chr(byte) for i, byte in enumerate(others)},
    }
