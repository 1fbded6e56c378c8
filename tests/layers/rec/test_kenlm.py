"""`kenlm` and the n-gram models behind it: scores by hand, and in a search."""

from __future__ import annotations

import gzip
import itertools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.ops.sequence import ngram
from returnn_tf.ops.sequence.ngram import ArpaModel, KenLmModel, LabelScorer, load_ngram_model
from tests.layers.nets import feed
from tests.layers.rec.searching import frame_loop, hypotheses, search_net

FILES = pathlib.Path(__file__).parent.parent.parent / "data/kenlm"
ARPA = str(FILES / "small.arpa")
LM: dict[str, Any] = {
    "class": "kenlm", "from": "prev:output", "lm_file": ARPA, "vocab_file": str(FILES / "words.vocab"),
    "input_step_offset": 1, "dense_output": True,
}  # fmt: skip
WORDS = ["</s>", "green", "house", "boat", "UNK"]


def total(model: Any, words: Sequence[str]) -> float:
    state, result = model.begin(), 0.0
    for word in words:
        score, state = model.score(state, word)
        result += score
    return result / math.log(10)


#: Log10 by hand: the longest n-gram there is, with the weights for backing off from the longer ones.
BY_HAND = [
    ("green house boat </s>", -0.4 - 0.1 - 0.35 + (-0.05 - 0.2)),
    ("house green", (-0.3 - 0.5) + (-0.2 - 0.8)),
    ("green boat </s>", -0.4 + (-0.25 - 0.1 - 0.7) - 0.2),
    ("plane house", (-0.3 - 1.2) - 0.5),
]


@pytest.mark.parametrize("text, expected", BY_HAND)
def test_scores_by_hand(text: str, expected: float) -> None:
    np.testing.assert_allclose(total(ArpaModel(ARPA), text.split()), expected, rtol=1e-6)


@pytest.mark.skipif(not ngram.has_kenlm(), reason="the optional package kenlm is not installed")
@pytest.mark.parametrize("text, expected", BY_HAND)
def test_the_library_gives_the_same(text: str, expected: float) -> None:
    np.testing.assert_allclose(total(KenLmModel(ARPA), text.split()), expected, rtol=1e-5)


def test_a_word_may_have_a_space_of_unicode(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_text(
        "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.5\tNew\u00a0York\n-1.0\t<unk>\n\n\\end\\\n", "utf8"
    )
    np.testing.assert_allclose(total(ArpaModel(str(tmp_path / "x")), ["New\u00a0York", "York"]), -1.5)


def test_unknown_words_by_their_other_name(tmp_path: pathlib.Path) -> None:
    text = pathlib.Path(ARPA).read_text()
    assert "<unk>" in text
    (tmp_path / "x").write_text(text.replace("<unk>", "<UNK>"))
    scores = [total(ArpaModel(path), ["plane", "<UNK>", "house"]) for path in (ARPA, str(tmp_path / "x"))]
    assert scores[0] == scores[1]


def test_a_file_that_changed_is_read_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "has_kenlm", lambda: False)
    path = tmp_path / "x"
    for prob in ("-0.5", "-0.25"):
        path.write_text("\\data\\\nngram 1=1\n\\1-grams:\n%s a\n\\end\\\n" % prob)
        model = load_ngram_model(str(path))
        assert model is load_ngram_model(str(path)) and total(model, ["a"]) == pytest.approx(float(prob))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("\\end\\\n", "", "it is not complete: it ends after the 3-grams of 3, without \\end\\"),
        ("ngram 1=6", "ngram 1=9", "the section \\1-grams: has 6 of 9 n-grams"),
        ("ngram 1=6", "ngram 1=5", "more 1-grams than the section \\data\\ announces"),
        ("ngram 1=6", "ngram 1=-5", 'line 2: "ngram 1=-5" is not "ngram 1=<count>"'),
        ("ngram 1=6\n", "", 'line 2: "ngram 2=5" is not "ngram 1=<count>"'),
        ("ngram 3=2", "ngram 3=2\nngram 4=1", "it is not complete: it ends after the 3-grams of 4"),
        ("ngram 1=6\nngram 2=5\nngram 3=2\n", "", "the section \\data\\ announces no 1-grams"),
        ("ngram 3=2\n", "", "the section \\data\\ announces no 3-grams"),
        ("\\data\\", "\\data\\\n\\data\\", 'line 2: "\\data\\" where \\1-grams: has to follow'),
        ("-0.5\thouse </s>\n", "", "the section \\2-grams: has 4 of 5 n-grams"),
        ("ngram 2=5", "ngram 2=five", "can't be read as ARPA file"),
        ("green house\t-0.15", "green", "less than 2 words"),
        ("green house", "green hut", 'the word "hut" is not among the 1-grams'),
    ],
)
def test_an_incomplete_file_is_not_used(old: str, new: str, message: str, tmp_path: pathlib.Path) -> None:
    text = pathlib.Path(ARPA).read_text()
    assert old in text
    (tmp_path / "x").write_text(text.replace(old, new, 1))
    with pytest.raises(DataError) as info:
        ArpaModel(str(tmp_path / "x"))
    assert message in str(info.value) and str(tmp_path / "x") in str(info.value)


@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_no_part_of_a_file_is_taken_for_the_whole(name: str, tmp_path: pathlib.Path) -> None:
    content = pathlib.Path(ARPA).read_bytes()
    content = gzip.compress(content) if name.endswith(".gz") else content.rstrip()
    for size in range(len(content)):
        (tmp_path / name).write_bytes(content[:size])
        with pytest.raises(DataError, match=name):
            ArpaModel(str(tmp_path / name))


def test_a_device_is_no_model() -> None:
    with pytest.raises(DataError, match="'/dev/zero' can't be read: it is a pipe or a device"):
        load_ngram_model("/dev/zero")


def test_a_string_longer_than_the_stack_is_deep() -> None:
    scorer = LabelScorer(ArpaModel(ARPA), WORDS, "UNK", "")
    history = (1, 2, 3, 4) * 400
    assert scorer.total(history) < scorer.total(history[:-1])


def test_pieces_of_words_are_scored_when_the_word_is_complete() -> None:
    labels = (FILES / "bpe.vocab").read_text().split()
    scorer = LabelScorer(ArpaModel(ARPA), labels, "UNK", "@@")
    words = LabelScorer(ArpaModel(ARPA), WORDS, "UNK", "")
    np.testing.assert_allclose(scorer.total((1, 2, 3, 4)), words.total((1, 2, 3)))
    assert scorer.total((1, 2)) == scorer.total((1,))
    np.testing.assert_allclose(scorer.next_scores((1, 2))[3], words.next_scores((1,))[2])
    assert scorer.next_scores((1,))[2] == 0.0


def test_scores_of_all_labels_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of strings with the same last words they are computed once, and not kept without limit."""
    model, asked = ArpaModel(ARPA), []
    scorer, fresh = LabelScorer(model, WORDS, "UNK", ""), [LabelScorer(ArpaModel(ARPA), WORDS, "UNK", "") for _ in "12"]
    score = model.score
    monkeypatch.setattr(model, "score", lambda state, word: asked.append(word) or score(state, word))
    strings = [(1, 2, 3), (2, 2, 3)]  # a trigram model sees two words
    for own, string in zip(fresh, strings):
        np.testing.assert_array_equal(scorer.next_scores(string), own.next_scores(string))
    assert len(asked) == 3 + 3 + len(WORDS)
    monkeypatch.setattr(LabelScorer, "_MAX_CACHED", 2 * len(WORDS))
    for string in itertools.product((1, 2, 3), repeat=2):
        scorer.next_scores(string)
    assert len(scorer._rows) <= 4


def test_files_which_are_no_models(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_text("nothing here")
    with pytest.raises(DataError, match="it has no section .1-grams:"):
        ArpaModel(str(tmp_path / "x"))
    (tmp_path / "y").write_bytes(b"\xff\xfe\x00mmap lm http")
    with pytest.raises(DataError, match="install kenlm"):
        ArpaModel(str(tmp_path / "y"))


def fused(**options: Any) -> dict[str, Any]:
    layers = {
        "lm": {**LM, **options},
        "s": {"class": "eval", "from": ["am", "lm"], "eval": "source(0) + 0.5 * source(1)"},
        "am": {"class": "linear", "activation": "log_softmax", "n_out": 5, "from": "data:source"},
        "p": {"class": "copy", "from": "s"},
    }
    choice = {"input_type": "log_prob", "length_normalization": False, "independent_of_batch": True}
    return {**frame_loop(choice, layers), "output": {"class": "copy", "from": "loop"}}


def words_of(labels: list[int]) -> list[str]:
    return ["<unk>" if label == 4 else WORDS[label] for label in labels]


def test_in_a_search() -> None:
    net = search_net(fused())
    params = net.get_param_values()
    found = hypotheses(net.run(feed()).layers["output"])
    model = ArpaModel(ARPA)
    for frames, hyps in zip(feed()["data"], found):
        z = frames @ params["loop/rec/am/W"] + params["loop/rec/am/b"]
        log_probs = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        for score, labels in hyps:
            expected = sum(log_probs[t, label] for t, label in enumerate(labels))
            expected += 0.5 * total(model, words_of(labels)) * math.log(10)
            np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-4)


def test_the_label_itself_where_the_target_is_given() -> None:
    layers = {"lm": {**LM, "from": "output", "input_step_offset": 0, "dense_output": False, "is_output_layer": True}}
    network = {**frame_loop({}, layers), "output": {"class": "copy", "from": "loop/lm"}}
    scores = search_net(network, train=True, search=False).run(feed()).layers["output"].value
    assert scores.shape == (3, 4)
    for labels, row, n in zip(feed()["labels"], scores, feed()["data/size0"]):
        np.testing.assert_allclose(
            row[:n].sum() / math.log(10), total(ArpaModel(ARPA), words_of(labels[:n])), rtol=1e-5
        )


@pytest.mark.parametrize(
    "options, match",
    [
        ({"lm_file": "nothing.arpa"}, "lm_file 'nothing.arpa' does not exist"),
        ({"vocab_file": "nothing"}, "vocab_file 'nothing' does not exist"),
        ({"vocab_file": str(FILES / "bpe.vocab")}, "vocab_file '.*bpe.vocab' has 6 labels, but the source .* has 5"),
        ({"lm_file": len}, r"lm_file: .*can't be called with no arguments"),
        ({"lm_file": lambda: None}, "lm_file must be a path, not None"),
        ({"vocab_file": lambda: 7}, "vocab_file must be a path, not 7"),
        ({"from": "data:source"}, "must be one label per sequence"),
    ],
)
def test_bad_input(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as info:
        search_net(fused(**options))
    assert "loop/lm" in str(info.value)
