"""N-gram models of the native search: scores as of the model in Python, binary files of KenLM, damaged files."""

import gzip
import pathlib
import random

import numpy as np
import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.ops.sequence import ngram_file
from returnn_tf.ops.sequence.ngram import ArpaModel
from returnn_tf.ops.sequence.ngram_file import indices_in, open_ngram, plan_ngram, read_ngram
from returnn_tf.ops.sequence.ngram_header import read_header

FILES = pathlib.Path(__file__).parents[2] / "data/kenlm"
ARPA, BINARY = FILES / "small.arpa", FILES / "small.probing"  # the second one by build_binary of KenLM
TEXTS = ["green house boat </s>", "house green", "green boat </s>", "plane house", "boat plane plane green house", ""]


def in_python(path, words):
    model = ArpaModel(str(path))
    state, scores = model.begin(), []
    for word in words:
        score, state = model.score(state, word)
        scores.append(score)
    return scores


@pytest.mark.parametrize("path", [ARPA, BINARY])
@pytest.mark.parametrize("text", TEXTS)
def test_scores_of_the_model_in_python(path, text):
    words = text.split()
    np.testing.assert_allclose(read_ngram(str(path)).scores(words), in_python(ARPA, words), rtol=1e-5)


def random_arpa(seed, order):
    """A model with random n-grams, some of which lack the shorter ones that end as they do."""
    rng = random.Random(seed)
    words = ["<unk>", "<s>", "</s>", "a", "b", "ä", "word-of-many-bytes", "c"]
    lines = ["\\data\\"]
    grams = {1: [(word,) for word in words]}
    for n in range(2, order + 1):
        contexts = grams[n - 1][1:] if n == 2 else grams[n - 1]
        grams[n] = sorted({(*rng.choice(contexts), rng.choice(words[1:])) for _ in range(20)})
    lines += ["ngram %d=%d" % (n, len(found)) for n, found in grams.items()]
    for n, found in grams.items():
        lines += ["", "\\%d-grams:" % n]
        for gram in found:
            backoff = "" if n == order or rng.random() < 0.2 else "\t%.3f" % rng.uniform(-1, 0.2)
            lines.append("%.3f\t%s%s" % (-rng.random() * 3, " ".join(gram), backoff))
    return words, "\n".join([*lines, "", "\\end\\", ""])


@pytest.mark.parametrize("order", [1, 2, 3, 5, 8])
def test_random_models(tmp_path, order):
    words, text = random_arpa(order, order)
    (tmp_path / "x.arpa").write_text(text, "utf8")
    with gzip.open(tmp_path / "x.arpa.gz", "wt", encoding="utf8") as file:
        file.write(text)
    rng = random.Random(1)
    sentence = [rng.choice([*words[2:], "unheard"]) for _ in range(200)]
    expected = in_python(tmp_path / "x.arpa", sentence)
    for name in ("x.arpa", "x.arpa.gz"):
        model = read_ngram(str(tmp_path / name))
        assert model.order == order
        np.testing.assert_allclose(model.scores(sentence), expected, rtol=1e-5, atol=1e-5)


def changed(old, new):
    return ARPA.read_text("utf8").replace(old, new, 1)


#: KenLM refuses such a model, too; one that lacks "c b" it takes.
WITHOUT_CONTEXT = """\\data\\
ngram 1=3
ngram 2=1
ngram 3=1
\\1-grams:
-1 a
-1 b
-1 c
\\2-grams:
-1 a b
\\3-grams:
-1 a c b
\\end\\
"""


@pytest.mark.parametrize(
    "content, text",
    [
        ("", "it is empty"),
        ("no model\n", "it has no section"),
        (changed("\\end\\", ""), r"it is not complete: it ends after the \d-grams of \d, without"),
        (changed("ngram 1=", "ngram 1=1"), "line [0-9]+: the section .1-grams: has"),
        (changed("ngram 1=", "ngram 3="), 'line 2: "ngram 3=[0-9]+" is not "ngram 1=<count>"'),
        (changed("ngram 2=", "ngram 2=9999999"), "line 3: more n-grams than the file has bytes"),
        (changed("\\2-grams:", "\\3-grams:"), "where .2-grams: has to follow"),
        (changed("green house", "green hut"), 'line [0-9]+: the word "hut" is not among the 1-grams'),
        (WITHOUT_CONTEXT, 'line 12: the context "a c" of this n-gram is not among the 2-grams'),
        (changed("\\1-grams:\n", "\\1-grams:\nnan\tx\n"), 'line [0-9]+: "nan" is not the log10 of a probability'),
        (changed("\\1-grams:\n", "\\1-grams:\n0.5\tx\n"), 'line [0-9]+: "0.5" is not the log10 of a probability'),
        (changed("\\1-grams:\n", "\\1-grams:\n-0.5\n"), "line [0-9]+: less than 1 words"),
    ],
)
def test_damaged_arpa_files(tmp_path, content, text):
    path = tmp_path / "x.arpa"
    path.write_text(content, "utf8")
    with pytest.raises(DataError, match=text) as error:
        read_ngram(str(path))
    assert repr(str(path)) in str(error.value)


@pytest.mark.parametrize(
    "content, text",
    [
        ("", "it is empty"),
        ("no model\n", "it has no section"),
        (changed("ngram 1=", "ngram 1=1"), "line [0-9]+: the section .1-grams: has"),
        (changed("ngram 1=", "ngram 3="), 'line 2: "ngram 3=[0-9]+" is not "ngram 1=<count>"'),
        (changed("\\1-grams:", "\\2-grams:"), 'line [0-9]+: ".2-grams:" where .1-grams: has to follow'),
        ("\\data\\\n\\1-grams:\n-1\ta\n\\end\\\n", "line 2: the section .data. announces no 1-grams"),
        (changed("\\data\\", "\\data\\\n\\data\\"), 'line 2: ".data." where .1-grams: has to follow'),
        (changed("ngram 1=6", "ngram 1=5"), "line [0-9]+: more 1-grams than the section .data. announces"),
        (changed("\\1-grams:\n", "\\1-grams:\nnan\tx\n"), 'line [0-9]+: "nan" is not the log10 of a probability'),
        (changed("\\1-grams:\n", "\\1-grams:\n0.5\tx\n"), 'line [0-9]+: "0.5" is not the log10 of a probability'),
        (changed("\\1-grams:\n", "\\1-grams:\n-0.5\n"), "line [0-9]+: less than 1 words"),
    ],
)
def test_damaged_beginnings(tmp_path, content, text):
    """What planning reads of a file has the errors of the library."""
    path = tmp_path / "x.arpa"
    path.write_text(content, "utf8")
    for read in (read_header, read_ngram):
        with pytest.raises(DataError, match=text) as error:
            read(str(path))
        assert repr(str(path)) in str(error.value)


def test_headers(tmp_path):
    header = read_header(str(ARPA))
    assert header.order == read_ngram(str(ARPA)).order == read_header(str(BINARY)).order
    assert {b"green", b"<s>", b"</s>"} < header.words and b"<unk>" not in header.words
    assert read_header(str(BINARY)).words is None
    (tmp_path / "x.arpa.gz").write_bytes(gzip.compress(ARPA.read_bytes()))
    assert read_header(str(tmp_path / "x.arpa.gz")) == header
    for content in (BINARY.read_bytes()[:60], BINARY.read_bytes()[:88] + b"\x63"):
        (tmp_path / "x.probing").write_bytes(content)
        with pytest.raises(DataError, match="it is damaged, or has n-grams of more than 8 words"):
            read_header(str(tmp_path / "x.probing"))


def test_a_file_is_read_once(tmp_path, monkeypatch):
    """A graph is made several times; a file that has changed is read again."""
    read = []
    monkeypatch.setattr(ngram_file, "read_ngram", lambda path: read.append(path) or read_ngram(path))
    path, labels = tmp_path / "x.arpa", DecodedLabels(["a", "b"])
    for prob, reads in ((-0.25, 1), (-0.25, 1), (-0.5, 2)):
        path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n%g a\n-0.9 b\n\n\\end\\\n" % prob)
        planned = plan_ngram(str(path), None, labels, 2, None)
        tokens = planned.for_ops()
        assert tokens.name.startswith("x-") and tokens.name.endswith(".arpa") and len(read) == reads
        model, indices = planned.for_decoder()
        assert model.scores(["a"]) == pytest.approx([prob * np.log(10)]) and list(indices) == [1, 2]


def test_models_that_differ_in_one_number_are_told_apart(tmp_path):
    """Wherever it is, and without another size: the graph would have the model that was read first."""
    path, labels = tmp_path / "x.arpa", DecodedLabels(["w00000"])
    words = ["-2.00 w%05d\n" % number for number in range(30000)]
    names = set()
    for changed_word in (None, 0, 7000, 22000, 29999):
        lines = [*words]
        if changed_word is not None:
            lines[changed_word] = lines[changed_word].replace("-2.00", "-2.01")
        path.write_text("\\data\\\nngram 1=%d\n\n\\1-grams:\n%s\n\\end\\\n" % (len(lines), "".join(lines)))
        names.add(plan_ngram(str(path), None, labels, 1, None).for_ops().name)
    assert len(names) == 5


def test_a_file_that_goes_or_changes_before_the_graph_is_made(tmp_path):
    path, labels = tmp_path / "ä x.arpa", DecodedLabels(["a", "b"])
    unigrams = "\\1-grams:\n-0.5 a\n-0.9 b\n"
    path.write_text("\\data\\\nngram 1=2\n%s\\end\\\n" % unigrams)
    planned = plan_ngram(str(path), None, labels, 2, None)
    assert planned.for_ops().name.startswith("__x-")
    path.write_text("\\data\\\nngram 1=2\nngram 2=1\n%s\\2-grams:\n-1 a b\n\\end\\\n" % unigrams)
    with pytest.raises(DataError, match="has changed while it was used"):
        planned.for_ops()
    path.unlink()
    with pytest.raises(DataError, match="can't be read: No such file"):
        planned.for_ops()


@pytest.mark.parametrize("size", [40, 60, 100, 130, 200, 440])
def test_cut_binary_files(tmp_path, size):
    path = tmp_path / "x.probing"
    path.write_bytes(BINARY.read_bytes()[:size])
    with pytest.raises(DataError, match="not complete|another version"):
        read_ngram(str(path))


@pytest.mark.parametrize(
    "at, content, text",
    [
        (49, b"4", "a binary file of another version"),
        (60, b"\0\0\0\0", "of a machine with other numbers"),
        (92, b"\0\0\0\0", "the size of its tables is wrong"),
        (96, b"\2", "build it by build_binary probing"),
        (88, b"\77", "n-grams of 63 words"),
        (108, b"\377" * 8, "not complete"),
    ],
)
def test_damaged_binary_files(tmp_path, at, content, text):
    data = bytearray(BINARY.read_bytes())
    data[at : at + len(content)] = content
    path = tmp_path / "x.probing"
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=text):
        read_ngram(str(path))


def test_missing_files_and_pipes(tmp_path):
    with pytest.raises(DataError, match=r"can't be read: No such file"):
        read_ngram(str(tmp_path / "x.arpa"))
    with pytest.raises(DataError, match="can't be read"):
        read_ngram("/dev/null")


def test_labels_that_no_file_can_have(tmp_path):
    """A label with a newline, or one that is no text, is unknown to a model, and the others keep their places."""
    path = tmp_path / "a.arpa"
    path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-0.5 a\n-0.9 b\n\n\\end\\\n")
    model = read_ngram(str(path))
    assert model.indices(["a", "\n", "b", "a\nb", "\udcff", "", "a"]).tolist() == [1, 0, 2, 0, 0, 0, 1]


def test_label_that_is_a_space(tmp_path):
    path = tmp_path / "a.arpa"
    path.write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-0.5 a\n-0.9 \u2581\n-1 <unk>\n\n\\end\\\n", "utf8")
    labels = DecodedLabels(["a", " ", "b"])
    assert open_ngram(str(path), None, None).indices(labels, 4, None).tolist() == [1, 2, 0, 0]


def test_words_of_another_vocabulary(caplog):
    model = read_ngram(str(ARPA))
    assert indices_in(model, ["green", "<unk>", "house"], "x.arpa", "labels").tolist()[1] == 0
    with pytest.raises(DataError, match=r"'x.arpa' lacks 2 of the 3 labels: 'GREEN', 'HOUSE'. It is one of another"):
        indices_in(model, ["GREEN", "HOUSE", "boat"], "x.arpa", "labels")
