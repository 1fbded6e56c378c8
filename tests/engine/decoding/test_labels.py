"""Words as labels: spelt by vocabularies, by characters, or not at all; files of words and of hot words."""

import pathlib
import re

import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.vocabulary import make_vocabulary
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.datasets.vocabulary.hot_words import hot_phrases
from returnn_tf.ops.sequence.lexicon import read_lexicon

MODEL = pathlib.Path(__file__).parents[2] / "data" / "datasets" / "text" / "spm.model"


def bpe(tmp_path, **options):
    (tmp_path / "codes").write_text("#version: 0.2\na b\nab c</w>\n")
    names = ["a@@", "b@@", "c@@", "ab@@", "a", "b", "c", "abc", "<unk>", "</s>"]
    given = {"class": "BytePairEncoding", "bpe_file": str(tmp_path / "codes"), "labels": names, **options}
    return names, make_vocabulary(given)


@pytest.mark.parametrize("options", [{"unknown_label": "<unk>"}, {"unknown_label": None}])
@pytest.mark.parametrize("postfix", [[], [9]])
def test_spelt_by_the_vocabulary(tmp_path, options, postfix):
    names, vocabulary = bpe(tmp_path, seq_postfix=postfix, **options)
    labels = DecodedLabels(names, vocabulary)
    assert labels.spell("abc") == (7,) and labels.spell("abb") == (3, 5)
    assert labels.spell("abx") is None and labels.spell("") is None
    assert labels.spell_phrase("abc  abb") == (7, 3, 5) and labels.spell_phrase("abc x") is None


@pytest.mark.parametrize(
    "names, word, expected",
    [
        (["a", "b"], "ab", (0, 1)),
        (["a", "b", " "], "ab", (0, 1, 2)),
        (["a", "b", "[space]"], "ba", (1, 0, 2)),
        (["one", "two"], "two", (1,)),
        (["one", "two"], "three", None),
        (["AH", "B", "K"], "BK", None),
        (["a@@", "b"], "ab", None),
    ],
)
def test_spelt_by_names(names, word, expected):
    assert DecodedLabels(names).spell(word) == expected


@pytest.mark.parametrize(
    "names, begins, ends",
    [
        (["a@@", "a"], [0, 0], [0, 1]),
        (["\u2581a", "a"], [1, 0], [0, 0]),
        (["a", " "], [0, 1], [0, 1]),
        (["one", "two"], [0, 0], [1, 1]),
    ],
)
def test_borders_of_words(names, begins, ends):
    found = DecodedLabels(names).borders(3)
    assert [flags.tolist() for flags in found] == [[*begins, 1], [*ends, 1]]


def test_lexicon_files(tmp_path):
    (tmp_path / "lexicon").write_text("ab\ta b\n\nab  b a\r\nc c\nba\n", "utf8")
    lexicon = read_lexicon(str(tmp_path / "lexicon"), DecodedLabels(["a", "b", "c"]))
    assert lexicon.words == ["ab", "c", "ba"]
    found = lexicon.spellings()
    assert found.words.tolist() == [0, 0, 1, 2] and found.num_words == 3
    assert [found.labels[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:])] == [
        [0, 1],
        [1, 0],
        [2],
        [1, 0],
    ]


def test_a_missing_lexicon(tmp_path):
    with pytest.raises(DataError, match="The lexicon: .*no.txt"):
        read_lexicon(str(tmp_path / "no.txt"), DecodedLabels(["a"]))


@pytest.mark.parametrize(
    "names, separator, lines, text",
    [
        (
            ["a", "b", "sil"],
            2,
            "ab a b\nuh sil a\nba b a\n[SIL] sil\n",
            "2 words with the label 'sil'.*: line 2 ('uh')",
        ),
        (["a", "b", "sil"], 2, "ab a b sil\n", "1 word with the label 'sil'"),
        (["a", "b", "[space]"], None, "ab [space] a b\n", "1 word with the label '[space]'"),
        (["a", "b", "[space]"], None, "ab a [space] b\nb b [space]\n", None),
    ],
)
def test_words_with_the_label_between_words(tmp_path, names, separator, lines, text):
    (tmp_path / "lexicon").write_text(lines, "utf8")
    labels = DecodedLabels(names, separator=separator)
    if text is None:
        assert read_lexicon(str(tmp_path / "lexicon"), labels).spellings().labels.tolist() == [0, 2, 1, 2, 1, 2]
        return
    with pytest.raises(DataError, match=re.escape(text).replace(r"\.\*", ".*") + ".*decode_separator"):
        read_lexicon(str(tmp_path / "lexicon"), labels)


def test_what_a_vocabulary_puts_around_texts_is_in_no_word():
    def labels(**options):
        vocabulary = make_vocabulary({"class": "SentencePieces", "model_file": str(MODEL), **options})
        return DecodedLabels(vocabulary.labels, vocabulary)

    plain = labels().spell("boat")
    assert plain and labels(add_bos=True, add_eos=True).spell("boat") == plain
    with pytest.raises(ConfigError, match="splits words at random.*'boat'"):
        labels(enable_sampling=True).spell("boat")


def test_the_space_is_not_the_separator_of_another_choice():
    labels = DecodedLabels(["a", " ", "sil"], separator=2)
    assert labels.separator == 2 and labels.spell("a") == (0,)


def test_hot_words_of_a_file(tmp_path):
    path = tmp_path / "hot"
    path.write_text("New York\t2.5\n\n  one \r\ntwo\t-1\n", "utf8")
    found = hot_phrases(str(path), 4.0)
    assert [(phrase.text, phrase.weight) for phrase in found] == [("New York", 2.5), ("one", 4.0), ("two", -1.0)]
    assert found[2].where == "%s, line 4" % path


@pytest.mark.parametrize(
    "given, text",
    [
        ({"a": "x"}, r"Hot word 'a' \(hot_words\['a'\]\): its weight 'x' is no number"),
        ({"a": None}, "its weight None is no number"),
        ({"a": float("nan")}, "its weight nan is no number"),
        (["a", " "], r"Hot word ' ' \(hot_words\[1\]\): it is empty"),
    ],
)
def test_wrong_hot_words(given, text):
    with pytest.raises(DataError, match=text):
        hot_phrases(given, 1.0)
