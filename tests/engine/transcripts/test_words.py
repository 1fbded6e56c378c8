"""Words from labels of every kind of vocabulary, with times and confidence."""

from __future__ import annotations

import pytest

from returnn_tf.datasets.vocabulary.spelling import Spelling
from returnn_tf.engine.search.labels import Bytes, Labels
from returnn_tf.engine.transcripts.transcript import Piece
from returnn_tf.engine.transcripts.words import words_of

_BYTES = [chr(byte) for byte in range(256)]

CASES = {
    "words": (["a", "bc", "</s>"], None, "a bc a", [("a", 0, 1), ("bc", 1, 2), ("a", 2, 3)]),
    "bpe": (["th@@", "e", "c@@", "at"], None, "th@@ e c@@ at", [("the", 0, 2), ("cat", 2, 4)]),
    "bpe, cut off": (["th@@", "e"], None, "e th@@", [("e", 0, 1), ("th", 1, 2)]),
    "pieces": (["▁the", "▁c", "at", "<unk>"], None, "▁the ▁c at", [("the", 0, 1), ("cat", 1, 3)]),
    "pieces without begin": (["▁the", "at"], None, "at ▁the", [("at", 0, 1), ("the", 1, 2)]),
    "pieces of two words": (["▁of▁the", "m", "▁"], None, "▁of▁the m ▁ m", [("of", 0, 1), ("them", 0, 2), ("m", 3, 4)]),
    "characters": (["a", "b", " "], None, None, [("ab", 0, 2), ("a", 4, 5)]),
    "characters without space": (["a", "b"], None, "a b a", [("aba", 0, 3)]),
    "a named space": (["<s>", "a", "b", "[space]"], None, "a b [space] a", [("ab", 0, 2), ("a", 3, 4)]),
    "phonemes": (["[SIL]", "a", "b"], None, "[SIL] a b", [("[SIL]", 0, 1), ("a", 1, 2), ("b", 2, 3)]),
    "characters by declaration": (["<eos>", "a", "b"], True, "a b", [("ab", 0, 2)]),
    "word pieces": (
        ["play", "##ing", "##", "un"],
        None,
        "un play ##ing ##",
        [("un", 0, 1), ("playing", 1, 3), ("##", 3, 4)],
    ),
    "words with blanks": (["New York", "is"], None, None, [("New", 0, 1), ("York", 0, 1), ("is", 1, 2)]),
    "bytes of a tokenizer": (["Ġthe", "ĠcafÃ", "©", "s"], None, "Ġthe ĠcafÃ © s", [("the", 0, 1), ("cafés", 1, 4)]),
    "an empty label": (["", "a", " "], None, "a a", [("a", 0, 1), ("a", 1, 2)]),
    "numbers": (None, None, "3 17", [("3", 0, 1), ("17", 1, 2)]),
}
_SEQUENCES = {"characters": ["a", "b", " ", " ", "a"], "words with blanks": ["New York", "is"]}


@pytest.mark.parametrize("case", CASES)
def test_spans(case):
    names, characters, sequence, expected = CASES[case]
    labels = _SEQUENCES[case] if sequence is None else sequence.split(" ")
    assert Spelling(names, characters).spans(labels) == expected


def test_no_labels_have_no_words():
    assert Spelling(["a@@", "b"]).spans([]) == []


def test_bytes_are_decoded_by_word():
    """A no-break space and a next-line control are bytes of letters in UTF-8, not borders."""
    indices = "à Å né".encode()
    assert Bytes().words(indices) == ["à", "Å", "né"]
    assert [span[1:] for span in Spelling(_BYTES).spans(Bytes().each(indices))] == [(0, 2), (3, 5), (6, 9)]
    assert Bytes().words([0xC3, 0x20, 0x61]) == ["\ufffd", "a"]


def test_words_of_an_index_without_name():
    assert Labels(["a@@", "b"]).words([0, 1, 7]) == ["ab", "7"]


def test_times_and_confidence_of_words():
    spelling = Spelling(["th@@", "e", "a"])
    labels = [Piece("th@@", 0.1, 0.2, 0.9), Piece("e", 0.3, 0.5, 0.4), Piece("a", 0.6, 0.7)]
    assert words_of(spelling.spans([label.text for label in labels]), labels) == (
        Piece("the", 0.1, 0.5, 0.4),
        Piece("a", 0.6, 0.7, None),
    )
