"""`word_scores`: a lexicon and an n-gram model in searches by `choice`, against all divisions of labels into words."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.native.errors import NativeOpError
from returnn_tf.ops.sequence import lexicon as lexicons
from returnn_tf.ops.sequence.ngram import ArpaModel
from tests.layers.nets import feed
from tests.layers.rec.searching import frame_loop, free_loop, hypotheses, one_sequence, search_net
from tests.layers.rec.test_hot_words import log_probs_of, with_mean

#: A state is the labels of a word that is not complete, and the words before it.
States = set[tuple[tuple[int, ...], tuple[str, ...]]]
Words = Sequence[tuple[str, tuple[int, ...]]]

ARPA = """\\data\\
ngram 1=7
ngram 2=5
ngram 3=1

\\1-grams:
-1.5 <unk>
-99 <s> -0.3
-0.9 </s>
-0.7 a -0.2
-0.8 ab -0.4
-1.1 ba -0.2
-0.6 c -0.5

\\2-grams:
-0.2 <s> ab -0.1
-0.3 a c
-0.4 ab ba -0.6
-0.5 c </s>
-0.1 b a

\\3-grams:
-0.05 <s> ab ba

\\end\\
""".replace("-0.1 b a\n", "-0.1 ba a\n")


@dataclasses.dataclass(frozen=True)
class Reference:
    """What the layer computes, by all ways to divide labels into words.

    :param arpa: a model of words; None: none
    :param space: the label that may be left out behind the last word
    """

    words: Words
    arpa: Optional[ArpaModel] = None
    scale: float = 0.7
    word_score: float = 0.3
    unknown_score: float = -0.4
    blank: Optional[int] = None
    separator: Optional[int] = None
    space: Optional[int] = None

    def states(self, labels: Sequence[int]) -> States:
        found: States = {((), ())}
        before = None
        for label in labels:
            if label == self.blank:
                continue
            found = {after for state in found for after in self._after(state, label, before)}
            before = label
        return found

    def _after(self, state: tuple[Any, Any], label: int, before: Optional[int]) -> Iterator[tuple[Any, Any]]:
        begun, words = state
        if not begun and label == self.separator != before:
            yield (), words
        begun = (*begun, label)
        for word, spelling in self.words:
            if spelling == begun:
                yield (), (*words, word)
            elif spelling[: len(begun)] == begun:
                yield begun, words

    def of_words(self, words: Sequence[str], *, ended: bool) -> float:
        total = sum(self.word_score + (self.unknown_score if self._lacks(word) else 0) for word in words)
        if self.arpa is None:
            return total
        state = self.arpa.begin()
        for word in [*words, "</s>"] if ended else words:
            score, state = self.arpa.score(state, word)
            total += self.scale * score
        return total

    def _lacks(self, word: str) -> bool:
        return self.arpa is not None and self.arpa.score((), word)[0] == self.arpa.score((), "<unk>")[0]

    def ahead(self, begun: tuple[int, ...]) -> float:
        """Return the score of the best word that begins with labels, whatever is before it."""
        scores = []
        for word, spelling in self.words:
            if spelling[: len(begun)] == begun:
                own = 0.0 if self.arpa is None else self.scale * self.arpa.score((), word)[0]
                scores.append(own + self.of_words([word], ended=False) - self._of_model(word))
        return max(scores)

    def _of_model(self, word: str) -> float:
        return 0.0 if self.arpa is None else self.scale * self.arpa.score(self.arpa.begin(), word)[0]

    def score(self, labels: Sequence[int]) -> float:
        """Return the score of labels so far, -inf if they are no words."""
        scores = [self.of_words(words, ended=False) + self.ahead(begun) for begun, words in self.states(labels)]
        return max(scores, default=-np.inf)

    def ended(self, labels: Sequence[int]) -> float:
        """Return the score of a whole sequence."""
        found = self.states(labels)
        if self.space is not None:
            last = [label for label in labels if label != self.blank][-1:]
            found |= {
                after
                for begun, words in found
                if begun
                for after in self._after((begun, words), self.space, (last or [None])[0])
            }
        return max((self.of_words(words, ended=True) for begun, words in found if not begun), default=-np.inf)


class OfLabels(Reference):
    """The same for a model of labels, which are all complete words."""

    def ahead(self, begun: tuple[int, ...]) -> float:
        return 0.0


#: Over the labels a, b, c: two sound alike, one is the beginning of others, some may be divided in several ways.
LEXICON: Words = [
    ("a", (0,)), ("ab", (0, 1)), ("ba", (1, 0)), ("ba", (1, 2)), ("sea", (2,)), ("c", (2,)), ("aba", (0, 1, 0)),
]  # fmt: skip
SPACED: Words = [("a", (0, 2)), ("ab", (0, 1, 2)), ("ba", (1, 0, 2)), ("b", (1, 2)), ("b", (0, 0, 2))]
PIECES: Words = [("a", (0,)), ("ba", (1, 0)), ("bba", (1, 1, 0)), ("c", (2,)), ("bc", (1, 2))]


@pytest.fixture
def arpa(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA)
    return str(path)


@pytest.fixture
def lexicon(tmp_path: pathlib.Path) -> str:
    return write_lexicon(tmp_path, LEXICON, NAMES)


def write_lexicon(folder: pathlib.Path, words: Words, names: Sequence[str]) -> str:
    """Write a lexicon; return its path. A space ends each word by itself."""
    path = folder / "lexicon.txt"
    path.write_text("".join("%s %s\n" % (w, " ".join(names[i] for i in own if names[i] != " ")) for w, own in words))
    return str(path)


class Scores:
    """The op of a layer, for the labels of `free_loop`."""

    def __init__(self, plan: Any) -> None:
        self._scores = plan.scores
        self._model = None if plan.model is None else plan.model.for_ops()
        self.state_size = self._scores.state_size(1 if plan.model is None else plan.model.order)
        self.scales: dict[str, float] = {}  # in place of the options

    def step(self, *inputs: Any) -> tuple[Any, Any]:
        after, scores = self._scores.step(self._model, *inputs, **self.scales)
        return after.numpy(), scores.numpy()


def scores_of(**options: Any) -> Scores:
    net = search_net(with_mean(free_loop(CHOICE, fused(**options))))
    return Scores(next(node.plan for node in net.plan.all_nodes() if node.layer.class_name == "word_scores"))


CHOICE = {"input_type": "log_prob", "length_normalization": False}
NAMES = ["a", "b", "c", "d", "e"]


def vocab_of(names: Sequence[str]) -> dict[str, Any]:
    return {"labels": list(names), "unknown_label": None}


def fused(**options: Any) -> dict[str, Any]:
    words = {"class": "word_scores", "from": "prev:output", "vocab": vocab_of(NAMES), **options}
    return {
        "am": {"class": "linear", "activation": "log_softmax", "n_out": 5, "from": ["emb", "base:mean"]},
        "words": words,
        "p": {"class": "combine", "kind": "add", "from": ["am", "words"]},
    }


def check_all(scores: Any, reference: Reference, most: int, end: Optional[int]) -> int:
    """Compare the scores of all label sequences; return how many have words.

    :param end: the label that ends a sequence
    """
    labels = [label for label in range(5) if label != end]
    states, total = np.zeros([1, scores.state_size], "int32"), np.zeros(1)
    sequences: list[tuple[int, ...]] = [()]
    seen = 0
    for _ in range(most):
        last = np.array([sequence[-1] if sequence else 3 for sequence in sequences], "int32")
        after, added = scores.step(last, np.zeros(len(last), bool), states)
        _, ending = scores.step(last, np.ones(len(last), bool), states)
        for i, sequence in enumerate(sequences):
            for label in labels:
                longer = (*sequence, label)
                expected = reference.score(longer), reference.ended(longer)
                found = total[i] + added[i, label], total[i] + ending[i, label]
                np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=str(longer))
            if end is not None:
                np.testing.assert_allclose(total[i] + added[i, end], reference.ended(sequence), atol=1e-4)
        kept = [(i, label) for i in range(len(sequences)) for label in labels if added[i, label] > -np.inf]
        total = np.array([total[i] + added[i, label] for i, label in kept])
        states = np.array([after[i] for i, _ in kept])
        sequences = [(*sequences[i], label) for i, label in kept]
        seen += len(sequences)
    return seen


@pytest.mark.parametrize("with_lm", [False, True])
@pytest.mark.parametrize(
    "words, names, options, most",
    [
        (LEXICON, NAMES, {"end_label": 4}, 5),
        (LEXICON, NAMES, {"blank": 4}, 5),
        (LEXICON, NAMES, {"blank": 3, "end_label": 4}, 4),
        (LEXICON, NAMES, {"end_label": 4, "separator": "d"}, 5),
        (LEXICON, NAMES, {"blank": 4, "separator": "d"}, 4),
        (SPACED, ["a", "b", " ", "d", "e"], {"end_label": 4}, 6),
        (SPACED, ["a", "b", " ", "d", "e"], {"blank": 3}, 5),
        (PIECES, ["a", "b@@", "c", "d", "e"], {"end_label": 4}, 5),
    ],
)
def test_the_score_of_labels_is_that_of_the_best_words(
    words: Words, names: list[str], options: dict[str, Any], most: int, with_lm: bool, arpa: str, tmp_path: pathlib.Path
) -> None:
    path = write_lexicon(tmp_path, words, names)
    lm = {"lm": arpa, "lm_scale": 0.7, "unknown_score": -0.4} if with_lm else {}
    scores = scores_of(lexicon=path, word_score=0.3, vocab=vocab_of(names), readings=50, **lm, **options)
    space = names.index(" ") if " " in names else None
    reference = Reference(
        words,
        ArpaModel(arpa) if with_lm else None,
        blank=options.get("blank"),
        separator=names.index(options["separator"]) if "separator" in options else space,
        space=space,
    )
    assert check_all(scores, reference, most, options.get("end_label")) > 30


@pytest.mark.parametrize("level", ["word", "label"])
def test_scales_that_change_from_search_to_search(level: str, arpa: str, lexicon: str) -> None:
    """The op takes them as input, for one graph: it has the lexicon anew, with what its words may become at best."""
    options: dict[str, Any] = (
        {"lexicon": lexicon} if level == "word" else {"vocab": vocab_of(["a", "ab", "ba", "c", "x"])}
    )
    scores = scores_of(lm=arpa, end_label=4, **options)
    for scale, word_score, unknown_score in ((0.7, 0.3, -0.4), (0.0, -1.0, 0.0), (1.5, 0.0, -2.0), (0.7, 0.3, -0.4)):
        others = {"word_score": word_score, "unknown_score": unknown_score}
        scores.scales, given = {"lm_scale": scale, **others}, {"scale": scale, **others}
        if level == "word":
            check_all(scores, Reference(LEXICON, ArpaModel(arpa), **given), 3, 4)
        else:
            words = [(name, (index,)) for index, name in enumerate(["a", "ab", "ba", "c"])]
            check_all(scores, OfLabels(words, ArpaModel(arpa), **given), 2, 4)


@pytest.mark.parametrize("gap", ["", "-0.05 ab ba c\n"])  # without the bigram that it ends with
def test_a_model_of_labels(gap: str, arpa: str) -> None:
    trigrams = "\\3-grams:\n"
    text = ARPA.replace(trigrams, trigrams + gap).replace("ngram 3=1", "ngram 3=%d" % (2 if gap else 1))
    pathlib.Path(arpa).write_text(text)
    names = ["a", "ab", "ba", "c", "x"]
    options = {"lm": arpa, "lm_scale": 0.7, "word_score": 0.3, "unknown_score": -0.4, "vocab": vocab_of(names)}
    words = [(name, (index,)) for index, name in enumerate(names)]
    for special in ({}, {"blank": 4}, {"end_label": 4}):
        known = [word for word in words if word[1][0] not in special.values()]
        reference = OfLabels(known, ArpaModel(arpa), blank=special.get("blank"))
        check_all(scores_of(**options, **special), reference, 4, special.get("end_label"))


def test_a_score_of_labels_alone() -> None:
    words = [(name, (index,)) for index, name in enumerate(NAMES[:3])]
    scores = scores_of(word_score=0.3, blank=3, end_label=4)
    check_all(scores, OfLabels(words, blank=3), 3, 4)


MODEL = {"lm_scale": 0.7, "word_score": 0.3, "unknown_score": -0.4, "readings": 50}


def test_in_a_search_that_ends_by_a_label(lexicon: str, arpa: str) -> None:
    """With a beam that is wide enough, the best of all sequences is found; each has the score of its labels."""
    words = {"lexicon": lexicon, "lm": arpa, "end_label": 0, "vocab": vocab_of(["</s>", *NAMES[:4]]), **MODEL}
    net = search_net(with_mean(free_loop({**CHOICE, "beam_size": 60}, fused(**words), max_seq_len=4)), seed=3)
    params = net.get_param_values()
    shifted = [(word, tuple(label + 1 for label in labels)) for word, labels in LEXICON]
    reference = Reference(shifted, ArpaModel(arpa))
    found = hypotheses(net.run(feed()).layers["output"])
    for frames, size, hyps in zip(feed()["data"], feed()["data/size0"], found):
        mean = frames[:size].mean(axis=0)
        scores = {}
        for length in range(5):
            for labels in itertools.product(range(1, 5), repeat=length):
                whole = (*labels, 0)[:4]  # what has the greatest length needs no end
                own = reference.ended(labels) if length < 4 else reference.score(labels)
                scores[labels] = log_probs_of(params, whole, mean) + own
        possible = [labels for labels, total in scores.items() if total > -np.inf]
        assert len(possible) > 20
        for (own, labels), expected in zip(hyps, sorted(possible, key=lambda labels: -scores[labels])[:10]):
            assert tuple(labels) == expected
            np.testing.assert_allclose(own, scores[expected], rtol=1e-4, atol=1e-4)


def transducer(beam: int, **options: Any) -> dict[str, Any]:
    layers = {
        **fused(**options),
        "am": {"class": "linear", "activation": "log_softmax", "n_out": 5, "from": ["emb", "data:source"]},
    }
    choice = {**CHOICE, "beam_size": beam, "initial_output": 4, "independent_of_batch": True}
    return {**frame_loop(choice, layers), "output": {"class": "copy", "from": "loop"}}


@pytest.mark.parametrize("separator", [{}, {"separator": "d"}])
def test_in_a_transducer_the_last_frame_ends_a_word(separator: dict[str, str], lexicon: str, arpa: str) -> None:
    net = search_net(transducer(8, lexicon=lexicon, lm=arpa, blank=4, **MODEL, **separator), seed=1)
    params = net.get_param_values()
    reference = Reference(LEXICON, ArpaModel(arpa), blank=4, separator=3 if separator else None)
    for frames, size, hyps in zip(
        feed()["data"], feed()["data/size0"], hypotheses(net.run(feed()).layers["output"])
    ):  # fmt: skip
        assert len(hyps[0][1]) == size
        whole = [(own, labels) for own, labels in hyps if own > -np.inf]
        assert len(whole) > 2
        for own, labels in whole:
            expected = reference.ended(labels)
            for frame, before, label in zip(frames, [4, *labels], labels):
                expected += log_probs_of(params, [label], frame, before)
            np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-4)


def test_sequences_of_a_batch_do_not_disturb_each_other(lexicon: str, arpa: str) -> None:
    net = search_net(transducer(4, lexicon=lexicon, lm=arpa, blank=4, **MODEL), seed=2)
    together = hypotheses(net.run(feed()).layers["output"])
    for index, expected in enumerate(together):
        (alone,) = hypotheses(net.run(one_sequence(index)).layers["output"])
        assert [labels for _, labels in alone] == [labels for _, labels in expected]
        np.testing.assert_allclose([own for own, _ in alone], [own for own, _ in expected], rtol=1e-5, atol=1e-5)


def test_few_readings_keep_the_best(lexicon: str, arpa: str) -> None:
    """With one reading, the words so far are the best ones, also where others would be better in the end."""
    reference = Reference(LEXICON, ArpaModel(arpa))
    options = {"lexicon": lexicon, "lm": arpa, "end_label": 4, **MODEL}
    one, all_of_them = (scores_of(**{**options, "readings": readings}) for readings in (1, 50))
    assert one.state_size < all_of_them.state_size
    lower = 0
    for labels in itertools.product(range(3), repeat=4):
        total, states = 0.0, np.zeros([1, one.state_size], "int32")
        for before, label in zip([4, *labels], [*labels, 4]):
            states, added = one.step(np.array([before]), np.array([False]), states)
            total += float(added[0, label])
        best = reference.ended(labels)
        assert total <= best + 1e-4
        lower += total < best - 1e-3
    assert lower


def test_after_a_label_that_continues_no_word_words_begin_anew(lexicon: str) -> None:
    """As in training, where the labels are those of the target."""
    scores = scores_of(lexicon=lexicon, end_label=4)
    states = np.zeros([1, scores.state_size], "int32")
    for label in (4, 1, 3):  # begins "ba", then no word
        states, added = scores.step(np.array([label]), np.array([False]), states)
    np.testing.assert_array_equal(added > -np.inf, [[True, True, True, False, True]])


@pytest.mark.parametrize(
    "options, match",
    [
        ({}, "has nothing to score labels by: give a lexicon, an n-gram model .lm., or a word_score"),
        ({"lexicon": "none.txt"}, "The lexicon: .*none.txt"),
        ({"lexicon": 7}, "option 'lexicon' must be a string or a function, got 7"),
        ({"lm": "none.arpa"}, "Language model 'none.arpa' can't be read: No such file"),
        ({"lm": "lexicon.txt"}, r"Language model '.*' is no n-gram model that can be read: it has no section"),
        ({"lm": "words.arpa", "lm_level": "word"}, "is one of words: that needs a lexicon.*set lm_level = 'label'"),
        ({"lm": "words.arpa", "vocab": vocab_of(["v", "w", "x", "y", "z"])}, "lacks 5 of the 5 labels.*another vocab"),
        ({"lexicon": "wrong.txt"}, "has labels that the model lacks, in 1 line: line 2 .'q'."),
        ({"lexicon": "lexicon.txt", "separator": "-"}, "separator: '-' is no label of vocab"),
        ({"lexicon": "lexicon.txt", "separator": "c"}, "with the label 'c', which is the one between words.*name an"),
        ({"lexicon": "lexicon.txt", "blank": 4, "end_label": 4}, "blank and end_label are both 4"),
        ({"lexicon": "lexicon.txt", "vocab": vocab_of(NAMES[:3])}, "vocab has 3 labels, but the source has 5"),
        ({"lexicon": "lexicon.txt", "blank": 5}, "blank is 5, but the source has the labels 0 to 4"),
        ({"lexicon": "lexicon.txt", "readings": 0}, "readings"),
        ({"lexicon": "lexicon.txt", "from": "base:data"}, "must be one label per sequence"),
    ],
)
def test_bad_input(
    options: dict[str, Any], match: str, lexicon: str, arpa: str, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.txt").write_text("a a\nq q\n")
    with pytest.raises(ConfigError, match=match) as info:
        search_net(with_mean(free_loop(CHOICE, fused(**options))))
    assert "loop/words" in str(info.value)


@pytest.mark.parametrize("with_lm", [False, True])
def test_the_words_of_labels_are_those_of_the_best_reading(with_lm: bool, lexicon: str, arpa: str) -> None:
    options = {"lexicon": lexicon, "end_label": 4, **({**MODEL, "lm": arpa} if with_lm else {"readings": 50})}
    net = search_net(with_mean(free_loop(CHOICE, fused(**options))))
    read = next(node.layer.word_reader() for node in net.plan.all_nodes() if node.path == "loop/words")
    reference = Reference(LEXICON, ArpaModel(arpa) if with_lm else None, word_score=0.3 if with_lm else 0.0)
    whole = 0
    for size in range(6):
        for labels in itertools.product(range(3), repeat=size):
            if not reference.states(labels):
                continue
            found = read([*labels, 4, 0])  # what follows the end is nothing
            borders = [0, *(past for _, _, past in found)]
            assert [first for _, first, _ in found] == borders[:-1]
            last = borders[-1]
            assert all((word, labels[first:past]) in LEXICON for word, first, past in found)
            if reference.ended(labels) > -np.inf:
                whole += 1
                assert last == size
                score = reference.of_words([word for word, _, _ in found], ended=True)
                np.testing.assert_allclose(score, reference.ended(labels), atol=1e-4)
            else:
                assert any(labels[last:] == own[: size - last] for _, own in LEXICON)  # a word that is not complete
    assert whole > 50


def test_a_lexicon_is_read_once_for_all_plans(lexicon: str, monkeypatch: Any) -> None:
    read: list[str] = []
    real = lexicons.read_lexicon
    monkeypatch.setattr(lexicons, "read_lexicon", lambda path, labels: read.append(path) or real(path, labels))
    for text, count in (("a a\n", 1), ("a a\n", 1), ("a a b\nb b\n", 2), ("a\n", 3), ("a\n", 4)):
        if pathlib.Path(lexicon).read_text() != text:
            pathlib.Path(lexicon).write_text(text)
        search_net(with_mean(free_loop(CHOICE, fused(lexicon=lexicon))))
        assert len(read) == count  # words that a vocabulary splits are read for each one


def test_files_are_read_to_their_end_when_the_graph_is_made(arpa: str, tmp_path: pathlib.Path) -> None:
    """A plan needs the words of a model; the library finds what is wrong with the other n-grams."""
    pathlib.Path(arpa).write_text(ARPA.replace("-0.05 <s> ab ba", "-0.05 <s> ab nobody"))
    net = search_net(with_mean(free_loop(CHOICE, fused(lm=arpa, vocab=vocab_of(["a", "ab", "ba", "c", "d"])))))
    with pytest.raises(DataError, match="'loop/words'.*line [0-9]+: the word .nobody. is not among the 1-grams"):
        net.run(feed())


def test_words_of_a_binary_file_are_compared_when_the_graph_is_made() -> None:
    binary = pathlib.Path(__file__).parents[2] / "data/kenlm/small.probing"
    net = search_net(with_mean(free_loop(CHOICE, fused(lm=str(binary)))))
    with pytest.raises(DataError, match="'loop/words'.*lacks 5 of the 5 labels"):
        net.run(feed())


def test_without_a_compiler(monkeypatch: Any) -> None:
    def fails() -> None:
        raise NativeOpError("there is no C++ compiler")

    monkeypatch.setattr("returnn_tf.layers.search.word_scores.ctc_ops", fails)
    net = search_net(with_mean(free_loop(CHOICE, fused(word_score=1.0))))
    with pytest.raises(
        ConfigError, match="'loop/words'.* can't be compiled here: there is no C.. compiler. Install a c"
    ):
        net.run(feed())
