"""Lattices of the hypotheses of a beam, read by small readers of their formats."""

from __future__ import annotations

import io
import re

import pytest

from returnn_tf.datasets.vocabulary.spelling import Spelling
from returnn_tf.engine.transcripts.formats.base import FORMATS
from returnn_tf.engine.transcripts.lattice import lattice_of
from returnn_tf.engine.transcripts.transcript import Hypothesis, Piece, Transcript
from returnn_tf.engine.transcripts.words import words_of

SPELLING = Spelling(["th@@", "e", "is"])


def hypothesis(text, acoustic, lm, score=None, start=0.0):
    """Return a hypothesis with a label per 0.1 seconds, whose scores have one more for the end."""
    names = text.split()
    labels = tuple(Piece(name, start + 0.1 * i, start + 0.1 * i + 0.1) for i, name in enumerate(names))
    words = words_of(SPELLING.spans([label.text for label in labels]), labels)
    spans = [(first, past) for _, first, past in SPELLING.spans(names)]
    parts = {"acoustic": sum(acoustic), "lm": sum(lm)}
    total = sum(parts.values()) if score is None else score
    return Hypothesis(labels, words, total, parts, {"acoustic": acoustic, "lm": lm}, spans)


BEAM = Transcript(
    "dev-1",
    (
        hypothesis("th@@ e is", [-1.0, -0.5, -2.0, -0.1], [-0.3, -0.3, -0.3, -0.2]),
        hypothesis("th@@ e th@@ e", [-1.0, -0.5, -4.0, -0.5, -0.1], [-0.3, -0.3, -0.6, -0.3, -0.2]),
        hypothesis("th@@ e", [-1.0, -0.5, -6.0], [-0.3, -0.3, -1.0]),
        hypothesis("is", [-9.0, -0.1], [-0.7, -0.2]),
    ),
    0.6,
)


def read_kaldi(text):
    """Return the paths of each lattice, words -> (graph score, acoustic score)."""
    found = {}
    for block in text.split("\n\n"):
        if not block:
            continue
        tag, *lines = block.split("\n")
        arcs, finals = [], {}
        for line in lines:
            fields = line.split(" ")
            graph, acoustic, ids = fields[-1].split(",")
            assert ids == ""
            scores = -float(graph), -float(acoustic)
            if len(fields) == 4:
                arcs.append((int(fields[0]), int(fields[1]), fields[2], scores))
            else:
                finals[int(fields[0])] = scores
        found[tag] = paths_of(arcs, finals)
    return found


def read_slf(text):
    """Return times of nodes, and paths, words -> (language model score, acoustic score)."""
    lines = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in text.splitlines()]
    header = {key: value for line in lines[:4] for key, value in line.items()}
    nodes = [line for line in lines if "I" in line]
    links = [line for line in lines if "J" in line]
    assert header["VERSION"] == "1.0" and (int(header["N"]), int(header["L"])) == (len(nodes), len(links))
    arcs = [(int(x["S"]), int(x["E"]), x["W"], (float(x["l"]), float(x["a"]))) for x in links]
    paths = paths_of(arcs, {len(nodes) - 1: (0.0, 0.0)})
    times = [float(node["t"]) if "t" in node else None for node in nodes]
    return (
        header["UTTERANCE"],
        times,
        {words.replace(" !NULL", "").replace("!NULL", ""): x for words, x in paths.items()},
    )


def paths_of(arcs, finals, state=0):
    found = {"": finals[state]} if state in finals else {}
    for start, end, word, scores in arcs:
        if start == state:
            for words, (one, two) in paths_of(arcs, finals, end).items():
                found[(word + " " + words).strip()] = (scores[0] + one, scores[1] + two)
    return found


def written(name, transcript):
    file = io.StringIO()
    FORMATS[name].write([transcript], file)
    return file.getvalue()


def expected():
    texts = ["the is", "the the", "the", "is"]
    parts = [each.parts for each in BEAM.hypotheses]
    return {text: pytest.approx((own["lm"], own["acoustic"]), abs=1e-5) for text, own in zip(texts, parts)}


def test_common_prefixes_are_shared():
    lattice = lattice_of(BEAM)
    assert [(arc.start, arc.end, arc.word) for arc in lattice.arcs] == [
        (0, 1, "the"), (1, 2, "is"), (1, 3, "the"), (0, 4, "is"),
    ]  # fmt: skip
    assert sorted(lattice.finals) == [1, 2, 3, 4]
    assert lattice.arcs[0].scores.acoustic == -1.5 and lattice.arcs[0].scores.lm == pytest.approx(-0.6)
    assert lattice.times == pytest.approx([0.0, 0.2, 0.3, 0.4, 0.1])


def test_kaldi():
    text = written("kaldi", BEAM)
    assert text.startswith("dev-1\n0 1 the 0.6,1.5,\n") and text.endswith("\n\n")
    assert read_kaldi(text) == {"dev-1": expected()}


def test_kaldi_finds_the_same_n_best_list():
    """By the code of its program lattice-to-nbest, with numbers in place of words, as sym2int.pl writes them."""
    kaldifst = pytest.importorskip("kaldifst")
    numbers = {"the": 1, "is": 2}
    lattice = kaldifst.Lattice()
    for _ in range(5):
        lattice.add_state()
    lattice.start = 0
    for line in written("kaldi", BEAM).strip().split("\n")[1:]:
        *fields, weight = line.split(" ")
        costs = kaldifst.LatticeWeight(*map(float, weight.split(",")[:2]))
        if len(fields) == 1:
            lattice.set_final(int(fields[0]), costs)
        else:
            word = numbers[fields[2]]
            lattice.add_arc(int(fields[0]), kaldifst.LatticeArc(word, word, costs, int(fields[1])))
    names = {number: word for word, number in numbers.items()}
    for scale in (1.0, 0.1):
        best = sorted(BEAM.hypotheses, key=lambda each: -(scale * each.parts["acoustic"] + each.parts["lm"]))
        paths = kaldifst.lattice_to_nbest(lattice, acoustic_scale=scale, lm_scale=1.0, n=10)
        assert len(paths) == len(best)
        for path, expected in zip(paths, best):
            _, _, words, costs = kaldifst.get_linear_symbol_sequence(path)
            assert [names[word] for word in words] == [word.text for word in expected.words]
            scores = expected.parts["lm"], scale * expected.parts["acoustic"]
            assert (-costs.value1, -costs.value2) == pytest.approx(scores, abs=1e-5)


def test_slf():
    tag, times, paths = read_slf(written("slf", BEAM))
    assert (tag, paths) == ("dev-1", expected())
    assert times == pytest.approx([0.0, 0.2, 0.3, 0.4, 0.1, 0.6])


@pytest.mark.parametrize("word, string", [("'em", "\\'em"), ('"', '\\"'), ("isn't", "isn't"), ("a\\b", "a\\\\b")])
def test_quotes_in_slf(word, string):
    one = Transcript("a", (Hypothesis((), (Piece(word),), -1.0),))
    assert " W=%s a=" % string in written("slf", one)


def test_what_is_in_no_part_is_at_the_end():
    """A division of the score by the length, say."""
    one = hypothesis("th@@ e", [-1.0, -2.0], [-0.5, -0.5], score=-2.0)
    lattice = lattice_of(Transcript("a", (one,)))
    assert (lattice.arcs[0].scores.acoustic, lattice.arcs[0].scores.lm) == (-3.0, -1.0)
    assert (lattice.finals[1].acoustic, lattice.finals[1].lm) == (0.0, 2.0)


def test_equal_hypotheses_are_one_with_the_better_score():
    same = [Hypothesis((Piece("is"),), (Piece("is"),), score, word_labels=[(0, 1)]) for score in (-5.0, -3.0, -4.0)]
    lattice = lattice_of(Transcript("a", tuple(same)))
    assert len(lattice.arcs) == 1 and lattice.finals[1].acoustic == -3.0


def test_impossible_hypotheses_are_left_out():
    beam = [Hypothesis((), (Piece(word),), score) for word, score in (("a", -1.0), ("b", float("-inf")))]
    assert [arc.word for arc in lattice_of(Transcript("a", tuple(beam))).arcs] == ["a"]
    none = Transcript("a", (beam[1],))
    assert written("kaldi", none) == "a\n\n" and read_slf(written("slf", none))[2] == {}


def test_words_alone_without_scores_and_times():
    beam = [Hypothesis((), tuple(Piece(word) for word in text.split()), -1.0) for text in ("a b", "a c", "")]
    transcript = Transcript("a", tuple(beam))
    assert set(read_kaldi(written("kaldi", transcript))["a"]) == {"a b", "a c", ""}
    _, times, paths = read_slf(written("slf", transcript))
    assert times == [0.0, None, None, None, None] and set(paths) == {"a b", "a c", ""}


def test_other_labels_of_the_same_word_are_another_path():
    two = [
        Hypothesis(tuple(Piece(x) for x in labels), (Piece("the"),), -1.0, word_labels=[(0, len(labels))])
        for labels in (["the"], ["th@@", "e"])
    ]
    assert len(lattice_of(Transcript("a", tuple(two))).arcs) == 2
