"""`hot_words`: the automaton of phrases against a sum over all places, and the layer in searches."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.sequence.phrases import BORDER, next_states, phrase_tables, rewards
from tests.layers.nets import feed
from tests.layers.rec.searching import frame_loop, free_loop, hypotheses, search_net

Phrases = dict[tuple[int, ...], float]


def score(
    phrases: Phrases, labels: Sequence[int], begins: Sequence[int], ends: Sequence[int], ignored: Optional[int] = None
) -> float:
    """Return the weights of the phrases at all places, and the largest share of one that is not complete."""
    labels = [label for label in labels if label != ignored]
    total, share = 0.0, 0.0
    for start, (phrase, weight) in itertools.product(range(len(labels)), phrases.items()):
        if start and not begins[labels[start]] and not ends[labels[start - 1]]:
            continue
        rest = tuple(labels[start:])
        if rest[: len(phrase)] == phrase:
            after = rest[len(phrase) :]
            total += weight if not after or ends[phrase[-1]] or begins[after[0]] else 0
        elif phrase[: len(rest)] == rest:
            share = max(share, weight * len(rest) / len(phrase))
    return total + share


WORDS: tuple[Sequence[int], Sequence[int]] = ([0, 0, 0, 0], [1, 1, 1, 1])
PIECES: tuple[Sequence[int], Sequence[int]] = ([0, 0, 0, 0], [0, 1, 0, 1])  # of BPE: 1 and 3 end a word
BEGUN: tuple[Sequence[int], Sequence[int]] = ([1, 0, 1, 0], [0, 0, 0, 0])  # of SentencePiece: 0 and 2 begin one


@pytest.mark.parametrize("borders", [WORDS, PIECES, BEGUN])
@pytest.mark.parametrize("ignored", [None, 3])
@pytest.mark.parametrize(
    "phrases",
    [
        {},
        {(1,): 2.0},
        {(0, 1): 2.0},
        {(0, 1, 2): 3.0, (1, 2): 0.5, (1,): 4.0, (2, 0): 1.0},  # one within another, and beginnings that overlap
        {(0, 0, 1): 3.0, (0, 1): 1.0, (0, 0): 2.0},
        {(2, 1): -2.0, (2, 1, 0): 1.0},
        {(1, 0, 1, 0, 2): 5.0, (0, 1, 0, 0): 4.0, (1, 2): 1.0},
    ],
)  # fmt: skip
def test_the_score_of_a_sequence_is_that_of_all_places(
    phrases: Phrases, borders: tuple[Sequence[int], Sequence[int]], ignored: Optional[int]
) -> None:
    begins, ends = borders
    tables = phrase_tables(list(phrases), list(phrases.values()), np.array(begins), np.array(ends), ignored)
    sequences = np.array(list(itertools.product(range(4), repeat=5)), "int32")
    states, totals = np.full(len(sequences), BORDER, "int32"), np.zeros(len(sequences), "float32")
    for position in range(sequences.shape[1]):
        labels = sequences[:, position]
        totals += rewards(tables, states).numpy()[np.arange(len(labels)), labels]
        states = next_states(tables, states, labels).numpy()
    expected = [score(phrases, labels, begins, ends, ignored) for labels in sequences.tolist()]
    np.testing.assert_allclose(totals, expected, atol=1e-5)


NAMES = ["</s>", "a", "b", "c", "d"]
VOCAB = {"labels": NAMES, "unknown_label": None}
PHRASES = {"a b": 3.0, "b c a": 2.0, "d": -1.0, "a a": 1.5}
#: The same as labels.
SPELT = {(1, 2): 3.0, (2, 3, 1): 2.0, (4,): -1.0, (1, 1): 1.5}
ALL_WORDS = ([0] * 5, [1] * 5)


def fused(**options: Any) -> dict[str, Any]:
    hot = {"class": "hot_words", "from": "prev:output", "phrases": PHRASES, "vocab": VOCAB}
    return {
        "am": {"class": "linear", "activation": "log_softmax", "n_out": 5, "from": ["emb", "base:mean"]},
        "hot": {**hot, **options},
        "p": {"class": "combine", "kind": "add", "from": ["am", "hot"]},
    }


def with_mean(loop: dict[str, Any]) -> dict[str, Any]:
    mean = {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}
    return {"mean": mean, **loop, "output": {"class": "copy", "from": "loop"}}


CHOICE = {"input_type": "log_prob", "length_normalization": False}


def log_probs_of(params: dict[str, Any], labels: Sequence[int], mean: Any, initial: int = 0) -> float:
    """Return the log probability of labels, without the phrases."""
    total = 0.0
    for before, label in zip([initial, *labels], labels):
        emb = np.tanh(params["loop/rec/emb/W"][before] + params["loop/rec/emb/b"])
        z = np.concatenate([emb, mean]) @ params["loop/rec/am/W"] + params["loop/rec/am/b"]
        total += float(z[label] - np.log(np.exp(z).sum()))
    return total


@pytest.mark.parametrize("initial", [0, 1])  # the initial output is part of no phrase
def test_in_a_search_that_ends_by_a_label(initial: int) -> None:
    """With a beam that is wide enough, the best of all sequences is found; each has the score of its labels."""
    choice = {**CHOICE, "beam_size": 60, "initial_output": initial}
    net = search_net(with_mean(free_loop(choice, fused(end_label=0), max_seq_len=3)), seed=3)
    params = net.get_param_values()
    found = hypotheses(net.run(feed()).layers["output"])
    for frames, size, hyps in zip(feed()["data"], feed()["data/size0"], found):
        mean = frames[:size].mean(axis=0)
        scores = {}
        for length in range(4):
            for labels in itertools.product(range(1, 5), repeat=length):
                whole = (*labels, 0)[:3]  # what has the greatest length needs no end
                scores[labels] = log_probs_of(params, whole, mean, initial) + score(SPELT, whole, *ALL_WORDS)
        for own, labels in hyps[:20]:
            np.testing.assert_allclose(own, scores[tuple(labels)], rtol=1e-4, atol=1e-4)
        assert max(scores, key=lambda labels: scores[labels]) == tuple(hyps[0][1])


def transducer(hot: dict[str, Any]) -> dict[str, Any]:
    layers = {
        **fused(),
        "am": {"class": "linear", "activation": "log_softmax", "n_out": 5, "from": ["emb", "data:source"]},
        "is_label": {"class": "compare", "kind": "not_equal", "value": 4, "from": "output", "initial_output": True},
        **hot,
    }
    choice = {**CHOICE, "beam_size": 8, "independent_of_batch": True}
    return {**frame_loop(choice, layers), "output": {"class": "copy", "from": "loop"}}


HOT: dict[str, Any] = {
    "class": "hot_words", "phrases": {"a b": 3.0, "b c a": 2.0, "a a": 1.5}, "blank": 4,
    "vocab": {"labels": NAMES[:4], "unknown_label": None},
}  # fmt: skip
MASKED = {
    "masked": {
        "class": "masked_computation", "mask": "prev:is_label", "from": "prev:output", "unit": {**HOT, "from": "data"},
    },
    "hot": {"class": "unmask", "mask": "prev:is_label", "from": "masked"},
}  # fmt: skip


@pytest.mark.parametrize("hot", [{"hot": {**HOT, "from": "prev:output"}}, MASKED])
def test_a_blank_changes_nothing(hot: dict[str, Any]) -> None:
    net = search_net(transducer(hot), seed=1)
    params = net.get_param_values()
    weights = {labels: weight for labels, weight in SPELT.items() if labels != (4,)}
    seen = set()
    for frames, hyps in zip(feed()["data"], hypotheses(net.run(feed()).layers["output"])):
        for own, labels in hyps:
            expected = score(weights, labels, *ALL_WORDS, ignored=4)
            seen.add(expected)
            for frame, before, label in zip(frames, [0, *labels], labels):
                expected += log_probs_of(params, [label], frame, before)
            np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-4)
    assert len(seen) > 4


def tables_of(**options: Any) -> Any:
    net = search_net(with_mean(free_loop(CHOICE, fused(**options))))
    return next(node.plan.tables for node in net.plan.all_nodes() if node.layer.class_name == "hot_words")


def total(tables: Any, labels: Sequence[int]) -> float:
    state, result = np.array([BORDER], "int32"), 0.0
    for label in labels:
        result += float(rewards(tables, state)[0, label])
        state = next_states(tables, state, np.array([label], "int32"))
    return result


BPE = {"labels": ["b@@", "a@@", "b", "a", "</s>"], "unknown_label": None}
PIECE = {"labels": ["\u2581a", "b", "\u2581b", "\u2581ab", "</s>"], "unknown_label": None}
CHARS = {"class": "CharacterTargets", "labels": ["a", "b", " ", "c"], "unknown_label": None}


@pytest.mark.parametrize(
    "phrase, vocab, end, labels, expected",
    [
        ("a@@ b", BPE, 4, [1, 2, 4], 3.0),
        ("a@@ b", BPE, 4, [0, 1, 2, 4], 0.0),  # within a word
        ("a@@ b", BPE, 4, [3, 1, 2, 4], 3.0),
        ("\u2581ab", PIECE, 4, [3, 4], 3.0),
        ("\u2581ab", PIECE, 4, [3, 2], 3.0),
        ("\u2581ab", PIECE, 4, [3], 3.0),
        ("\u2581ab", PIECE, 4, [3, 1, 4], 0.0),  # a longer word
        ("\u2581ab", PIECE, 4, [2, 3, 3], 6.0),
        ("ab", CHARS, 4, [0, 1, 2, 3], 3.0),
        ("ab", CHARS, 4, [3, 2, 0, 1, 4], 3.0),  # the end needs no space before it
        ("ab", CHARS, 4, [0, 1, 3, 2], 0.0),  # of another word
        ("ab", CHARS, 4, [3, 0, 1, 2], 0.0),
        ("ab", CHARS, 4, [0, 1], 2.0),
        ("ab c", CHARS, 4, [0, 1, 2, 3, 4], 3.0),
        ("ab c", CHARS, 4, [0, 1, 4], 0.0),
    ],
)
def test_borders_of_words(phrase: str, vocab: dict[str, Any], end: int, labels: list[int], expected: float) -> None:
    tables = tables_of(phrases={phrase: 3.0}, vocab=vocab, end_label=end)
    assert total(tables, labels) == pytest.approx(expected)


def test_phrases_by_a_file_or_a_function(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "hot.txt"
    path.write_text("a b\t2.5\n\nc\n")
    for phrases in (str(path), lambda: str(path), lambda: {"a b": 2.5, "c": 1.0}):
        tables = tables_of(phrases=phrases, weight=1.0)
        assert total(tables, [1, 2, 3]) == pytest.approx(3.5)


def test_without_phrases() -> None:
    assert total(tables_of(phrases=[]), [1, 2, 0]) == 0.0


@pytest.mark.parametrize(
    "options, match",
    [
        ({"phrases": ["a", "x y"]}, r"Hot word 'x y' \(phrases\[1\]\): the labels of the model can't spell 'x' of it"),
        ({"phrases": lambda: {"a": "much"}}, r"\(phrases\['a'\]\): its weight 'much' is no number"),
        (
            {"phrases": lambda: {"a b": 2.0, "d": 1, "a  b": 3.0}},
            r"Hot word 'a b' \(phrases\['a  b'\]\) has the weight 3, but 2 in phrases\['a b'\]. Remove one of them",
        ),
        ({"phrases": "none.txt"}, "phrases: .*none.txt"),
        ({"phrases": 7}, "option 'phrases' must be a string, a list of strings, a dict .* or a function, got 7"),
        ({"phrases": lambda: None}, "phrases must be a path, not None"),
        (
            {"vocab": {"labels": NAMES[:3], "unknown_label": None}},
            "vocab has 3 labels, but the source has 5.*end_label",
        ),
        ({"vocab": {"labels": [*NAMES, "x"], "unknown_label": None}}, "vocab has 6 labels, but the source has 5"),
        ({"vocab": {"labels": NAMES}}, "vocab: Vocabulary: unknown_label, the default 'UNK' is not among"),
        ({"vocab": "words.txt"}, "option 'vocab' must be a dict, got 'words.txt'"),
        ({"blank": 5}, "blank is 5, but the source has the labels 0 to 4"),
        ({"end_label": -1}, "end_label is -1, but the source has the labels 0 to 4"),
        ({"weight": float("nan")}, "weight"),
        ({"from": "base:data"}, "must be one label per sequence"),
    ],
)
def test_bad_input(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as info:
        search_net(with_mean(free_loop(CHOICE, fused(**options))))
    assert "loop/hot" in str(info.value)


def test_a_file_with_a_phrase_that_cannot_be_spelt(tmp_path: pathlib.Path) -> None:
    (tmp_path / "hot.txt").write_text("a b\n\nnone\t3\n")
    with pytest.raises(ConfigError, match=r"Hot word 'none' \(.*hot.txt, line 3\): the labels of the model can't"):
        tables_of(phrases=str(tmp_path / "hot.txt"))
