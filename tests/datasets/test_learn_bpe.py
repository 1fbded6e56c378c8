"""Merges of byte pair encoding: as subword-nmt learns them, and a vocabulary of the size asked for."""

from __future__ import annotations

import collections
import io
import random
from pathlib import Path

import pytest

from returnn_tf.config.errors import DataError
from returnn_tf.datasets.vocabulary import make_vocabulary
from returnn_tf.datasets.vocabulary.learn_bpe import LearnedPieces, count_words, learn_bpe

TEXTS = [
    "low low low low low lower lower newest newest newest newest newest newest widest widest widest",
    "banana bananas ananas anan aaaa aaaaa aaaaaaa",
    "Äpfel Birnen äpfel ein-und-zwanzig 1000 100 10",
]


def random_texts(seed: int) -> list[str]:
    """Return sentences of few letters, with many pairs that are as frequent."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcde", k=rng.randint(1, 8))) for _ in range(60)]
    return [" ".join(rng.choices(words, k=8)) for _ in range(40)]


def by_recounting(words: dict[str, int], count: int) -> list[tuple[str, str]]:
    """Return the merges by counting all pairs again before each."""
    split = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    merges = []
    for _ in range(count):
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        for word, symbols in split.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += words[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word, symbols in split.items():
            joined: list[str] = []
            while symbols:
                size = 2 if tuple(symbols[:2]) == best else 1
                joined.append("".join(symbols[:size]))
                symbols = symbols[size:]
            split[word] = joined
    return merges


@pytest.mark.parametrize("texts", [TEXTS, random_texts(1), random_texts(2)], ids=["words", "random", "other random"])
@pytest.mark.parametrize("more", [0, 1, 5, 12])
def test_merges(more: int, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = count_words(texts)
    size = 2 * len(set("".join(words))) + more
    learned = learn_bpe(words, size)
    assert learned.merges == by_recounting(words, len(learned.merges))
    assert (len(learned.labels), len(set(learned.labels))) == (size, size)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    subword_nmt = pytest.importorskip("subword_nmt.learn_bpe")
    theirs = io.StringIO()
    subword_nmt.learn_bpe(io.StringIO("\n".join(texts)), theirs, len(learned.merges))
    assert learned.codes == theirs.getvalue()


def vocabulary_of(learned: LearnedPieces, folder: Path, **options: object):
    """Write the files, and return the vocabulary that reads them."""
    (folder / "codes").write_text(learned.codes, "utf8")
    (folder / "vocab").write_text(learned.vocabulary, "utf8")
    files = {"bpe_file": str(folder / "codes"), "vocab_file": str(folder / "vocab")}
    return make_vocabulary({**files, "unknown_label": None, **options})


@pytest.mark.parametrize("seed", range(3))
def test_words_of_known_characters_can_be_written(seed: int, tmp_path: Path) -> None:
    """No label is unknown, and each piece of more than one character occurs in the corpus."""
    texts = random_texts(seed)
    words = count_words(texts)
    learned = learn_bpe(words, 40, further=["</s>", "<unk>"])
    vocabulary = vocabulary_of(learned, tmp_path)
    assert vocabulary.labels[:2] == ["</s>", "<unk>"] and list(vocabulary.labels) == learned.labels
    used = {piece for word in words for piece in vocabulary.pieces(word)}
    assert {label for label in learned.labels[2:] if len(label.replace("@@", "")) > 1} <= used
    for word in [*words, "edcba", "a", "eeee"]:
        assert "".join(piece.replace("@@", "") for piece in vocabulary.pieces(word)) == word
        assert all(piece in learned.labels for piece in vocabulary.pieces(word))


def test_characters_that_do_not_occur(tmp_path: Path) -> None:
    learned = learn_bpe({"ab": 3, "ac": 1}, 9, characters="az")
    vocabulary = vocabulary_of(learned, tmp_path)
    assert vocabulary.pieces("zab") == ["z@@", "ab"]
    assert vocabulary.num_labels == 2 * 4 + 1


def test_names_stay_whole() -> None:
    """As `BytePairEncoding` takes them: they are no words to split."""
    assert count_words(["a $name {of a group} b", "$ a"]) == {"a": 2, "b": 1, "$": 1}


@pytest.mark.parametrize(("words", "size", "further", "message"), [
    ({}, 10, [], "no words"),
    ({"ab": 3}, 3, [], "3 labels are too few: the 2 characters .* are 4"),
    ({"ab": 3}, 5, ["UNK", "</s>"], "too few: .* are 6"),
    ({"abc": 3, "de": 1}, 20, [], "20 labels are too many: the corpus gives no more than 11"),
    ({"lo@@": 3, "w": 3}, 10, [], "in pieces already: 'lo@@'"),
    ({"low</w>": 3}, 20, [], "in pieces already"),
    ({"ab": 3}, 10, ["x", "x"], "must differ"),
    ({"ab": 3}, 10, ["a"], "must differ"),
    ({"UNK": 3, "NK": 1}, 9, ["UNK"], "label 'UNK' is a piece of the corpus, too"),
])  # fmt: skip
def test_mistakes(words: dict[str, int], size: int, further: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        learn_bpe(words, size, further=further)
