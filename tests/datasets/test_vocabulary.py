"""Vocabularies: all recorded ones, their neighbours, and files that are none."""

from __future__ import annotations

import gzip
import json
import pickle

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.vocabulary import (
    BytePairEncoding,
    CharacterTargets,
    SamplingBytePairEncoding,
    Vocabulary,
    make_vocabulary,
    read_labels,
    vocab_labels,
)
from tests.datasets.recorded import ROOT, by_name, load_json

CASES = by_name(load_json("text/vocab.json"))
SAMPLING = by_name(load_json("lm2/lm2.json")["sampling_vocabs"])
FILES = "vocab_file", "bpe_file", "model_file", "special_symbols_via_file"


def _options(options, folder):
    return {key: str(ROOT / folder / value) if key in FILES and value else value for key, value in options.items()}


def _make(case, folder="text"):
    return make_vocabulary(_options(case["options"], folder), owner="a test")


@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    case = CASES[name]
    if "sentencepiece" in name:
        pytest.importorskip("sentencepiece")
    if "exception" in case:
        with pytest.raises(ConfigError, match=r"^a test: Vocabulary: (unknown_label|num_labels)"):
            _make(case)
        return
    vocab = _make(case)
    specials = [vocab.unknown_label_id, vocab.bos_label_id, vocab.eos_label_id, vocab.pad_label_id]
    assert specials == [case[key] for key in ("unknown_label_id", "bos", "eos", "pad")]
    assert vocab.num_labels == len(vocab.labels) == case["num_labels"]
    if isinstance(case["labels"], dict):
        assert vocab.labels[: len(case["labels"]["first"])] == case["labels"]["first"]
    else:
        assert vocab.labels == case["labels"]
    assert vocab.control_symbol_ids == case.get("control_symbol_ids", {})
    assert vocab.user_defined_symbol_ids == case.get("user_defined_symbol_ids", {})
    for entry in case["cases"]:
        if "exception" in entry:
            with pytest.raises(DataError, match="is not among its .* labels, and unknown_label is None"):
                vocab.get_seq(entry["text"])
            continue
        assert vocab.get_seq(entry["text"]) == entry["ids"], entry["text"]
        if "back" in entry:
            assert vocab.get_seq_labels(entry["ids"]) == entry["back"]
    again = pickle.loads(pickle.dumps(vocab))
    assert (again.labels, again.get_seq("a")) == (vocab.labels, vocab.get_seq("a"))


@pytest.mark.parametrize("name", SAMPLING)
def test_recorded_sampling(name):
    case = SAMPLING[name]
    if "exception" in case:
        with pytest.raises(ConfigError, match="not both"):
            _make(case, "lm2")
        return
    vocab = _make(case, "lm2")
    for run in case["runs"]:
        if run["seed"] is not None:
            vocab.set_random_seed(run["seed"])
        for text, ids in run["seqs"].items():
            assert vocab.get_seq(text) == ids, (run["seed"], text)
    assert vocab.get_seq_labels(case["inverse"]["ids"]) == case["inverse"]["text"]


def _file(tmp_path, name, content):
    path = tmp_path / name
    if not isinstance(content, bytes):
        content = content.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


TABLE = {"<unk>": 0, "a": 1, "é": 2, "A": 1}


@pytest.mark.parametrize(
    "name, content",
    [
        ("v.txt", repr(TABLE)),
        ("v.txt.gz", repr(TABLE)),
        ("v.json", json.dumps(TABLE)),
        ("v", json.dumps(TABLE)),
        ("v.pkl", pickle.dumps(TABLE)),
        ("v.pkl.gz", pickle.dumps(TABLE, protocol=2)),
        # written by Python 2: byte strings
        ("v.pkl", b"\x80\x02}(U\x05<unk>K\x00U\x01aK\x01U\x02\xc3\xa9K\x02U\x01AK\x01u."),
        ("v.pkl", b"(dp0\nS'<unk>'\np1\nI0\nsS'a'\np2\nI1\nsS'\\xc3\\xa9'\np3\nI2\nsS'A'\np4\nI1\ns."),
    ],
)
def test_forms_of_files(tmp_path, name, content):
    vocab = make_vocabulary({"vocab_file": _file(tmp_path, name, content), "unknown_label": "<unk>"})
    assert vocab.labels == ["<unk>", "a", "é"]  # of two names the lexically last one
    assert vocab.get_seq("A a é b") == [1, 1, 2, 0]


@pytest.mark.parametrize(
    "name, content",
    [
        ("v.txt", "a\n \n\u2028\n[b]\n"),
        ("v.txt", "a\r\n \r\n\u2028\r\n[b]"),
        ("v.json", '["a", " ", "\\u2028", "[b]"]'),
        ("v.pkl", pickle.dumps(["a", " ", "\u2028", "[b]"])),
    ],
)
def test_lists_of_labels(tmp_path, name, content):
    assert read_labels(_file(tmp_path, name, content)) == ["a", " ", "\u2028", "[b]"]


def test_a_changed_file_is_read_again(tmp_path):
    path = _file(tmp_path, "v", "a\nb\n")
    assert read_labels(path) == ["a", "b"]
    _file(tmp_path, "v", "a\nb\nc\n")
    assert read_labels(path) == ["a", "b", "c"]


BAD_FILES = {
    "gap": ("v", "{'a': 0, 'b': 2}", "none has the id 1"),
    "not from 0": ("v", "{'a': 1, 'b': 2}", "are from 1 to 2, .* none has the id 0"),
    "negative": ("v", "{'a': -1, 'b': 0}", "from -1 to 0"),
    "twice": ("v", "a\nb\na\n", "label 'a' occurs twice, as line 1 and line 3"),
    "empty": ("v", "", "there are no labels"),
    "empty dict": ("v", "{}", "there are no labels"),
    "floats": ("v", "{'a': 0.0}", "expected a dict {label: id"),
    "bools": ("v", "{'a': False}", "expected a dict {label: id"),
    "broken": ("v", "{'a': 0, ", "expected a dict {label: id, ...}, but: "),
    "broken JSON": ("v.json", '{"a": 0', "expected a dict {label: id, ...}, but: "),
    "number": ("v.json", "1", "expected a dict {label: id"),
    "code": ("v", "{'a': open('x')}", "expected a dict {label: id, ...}, but: "),
    "not UTF-8": ("v", b"a\n\xff\n", "not a UTF-8 text file"),
    "not gzip": ("v", None, "does not exist"),
    "merges": ("v", "#version: 0.2\na b\n", "is it the bpe_file"),
    "function in a pickle": ("v.pkl", pickle.dumps({"a": print}), "only plain lists, .*builtins.print"),
    "numpy in a pickle": ("v.pkl", pickle.dumps({"a": np.int64(0)}), "Write the labels to a text file"),
    "text as pickle": ("v.pkl", "a\nb\n", "only plain lists"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name):
    file, content, text = BAD_FILES[name]
    path = str(tmp_path / file) if content is None else _file(tmp_path, file, content)
    for options in ({"vocab_file": path}, {"vocab_file": path, "class": "CharacterTargets"}):
        with pytest.raises((ConfigError, DataError), match="(?s)%s.*%s" % (file, text)):
            make_vocabulary(options)
    with pytest.raises((ConfigError, DataError), match=text):
        vocab_labels("classes", {"vocab_file": path})


LABELS = ["<s>", "a", "b"]
BAD_OPTIONS = [
    ({"labels": LABELS}, "Vocabulary: unknown_label, the default 'UNK' is not among the 3 labels.*Give unknown_label"),
    ({"labels": LABELS, "unknown_label": 3}, "unknown_label is 3, but must be a label or its id, from 0 to 2"),
    ({"labels": LABELS, "unknown_label": -2}, "unknown_label is -2"),
    ({"labels": LABELS, "unknown_label": True}, "unknown_label is True|option 'unknown_label'"),
    ({"labels": LABELS, "unknown_label": None, "bos_label": "<S>"}, "bos_label '<S>' is not among"),
    ({"labels": LABELS, "unknown_label": None, "pad_label": 7}, "pad_label is 7"),
    ({"labels": LABELS, "unknown_label": None, "control_symbols": {"x": "y"}}, r"control_symbols\['x'\] 'y'"),
    ({"labels": LABELS, "unknown_label": None, "seq_postfix": [3]}, "seq_postfix is 3"),
    ({"labels": LABELS, "unknown_label": None, "seq_postfix": ["<s>"]}, "option 'seq_postfix' must be"),
    ({"labels": LABELS, "unknown_label": None, "num_labels": 2}, "num_labels is 2, but there are 3"),
    ({"labels": LABELS, "vocab_file": "x"}, "either 'vocab_file' or 'labels'"),
    ({"labels": lambda: 3}, "labels must be a list, got int"),
    ({"labels": []}, "there are no labels"),
    ({}, "either 'vocab_file' or 'labels'"),
    ({"labels": LABELS, "unknown_lable": None}, "unknown option 'unknown_lable'. Did you mean 'unknown_label'"),
    ({"labels": LABELS, "mapping_specials": 1, "class": "CharacterTargets"}, "unknown option 'mapping_specials'"),
    (
        {"labels": LABELS, "class": "CharacterTarget"},
        "unknown class .* 'CharacterTarget'. Did you mean 'Char",
    ),
    ({"labels": LABELS, "class": "CharacterTargets"}, "unknown_label, the default '@'"),
    ({"class": 3, "labels": LABELS}, "unknown class of vocabulary 3"),
    ({"class": "Utf8ByteTargets", "seq_postfix": [256]}, "seq_postfix is 256"),
    ({"class": "Utf8ByteTargets", "unknown_label": "a"}, "option 'unknown_label'"),
    ({"class": "BytePairEncoding", "labels": LABELS, "unknown_label": None}, "the option 'bpe_file' is missing"),
    ({"class": "SamplingBytePairEncoding", "labels": LABELS, "breadth_prob": 1.5}, "breadth_prob"),
    ({"class": "SentencePieces", "model_file": "missing.model"}, "model_file 'missing.model' does not exist"),
    ({"class": "SentencePieces", "model_file": __file__}, "is no model of sentencepiece"),
    (["a"], "a vocabulary is a dict"),
    ({"labels": len, "unknown_label": None}, "labels: .*can't be called with no arguments"),
    ("words.txt", "a vocabulary is a dict"),
]


@pytest.mark.parametrize("options, text", BAD_OPTIONS, ids=[text for _, text in BAD_OPTIONS])
def test_bad_options(options, text):
    if isinstance(options, dict) and options.get("class") == "SentencePieces":
        pytest.importorskip("sentencepiece")
    with pytest.raises((ConfigError, DataError), match="^the owner: .*(%s)" % text):
        make_vocabulary(options, owner="the owner")


@pytest.mark.parametrize(
    "content, text",
    [
        ("#version: 0.3\na b\n", "has the version 0.3; only 0.1 and 0.2"),
        ("a b\nc\n", r"line 2: expected a merge 'left right', got 'c'. Is it the vocab_file\?"),
        ("a b c\n", "line 1: expected a merge"),
        ("{'a': 0, 'b': 1}", "line 1: expected a merge"),
        ("{'a':0}", "line 1: expected a merge"),
        ("a 10\nb 5\n", "labels with counts"),
        ("", "has no merges"),
        ("#version: 0.2\n", "has no merges"),
        (b"a \xff\n", "not a UTF-8 text file"),
        (None, "does not exist"),
    ],
)
def test_bad_merges(tmp_path, content, text):
    path = str(tmp_path / "codes") if content is None else _file(tmp_path, "codes", content)
    with pytest.raises(DataError, match="codes.*%s" % text):
        make_vocabulary({"bpe_file": path, "labels": LABELS, "unknown_label": None})


@pytest.mark.parametrize(
    "merges, labels, words",
    [
        # the first of equal merges, and of equal results, counts
        ("#version: 0.2\na b\nb c</w>\nab c</w>\na bc</w>\na b\n", ["abc"], {"abc": "abc"}),
        ("#version: 0.2\na b\nb c</w>\nab c</w>\na bc</w>\n", ["ab@@", "c"], {"abc": "ab@@ c"}),
        ("#version: 0.2\nb c</w>\na bc</w>\nab c</w>\na b\n", ["a@@", "bc"], {"abc": "a@@ bc"}),
        # from the left, all occurrences of a pair at once
        ("#version: 0.2\na a\n", ["aa@@"], {"aaaaa": "aa@@ aa@@ a", "aaaa": "aa@@ a@@ a"}),
        ("a a\naa </w>\n", ["aa", "aa@@"], {"aaaa": "aa@@ aa", "a": "a"}),
        # a word of one character stays, whether it is a label or not
        ("#version: 0.2\na b</w>\n", [], {"a": "a", "é": "é"}),
        ("a </w>\nx y\n", ["a@@", "a"], {"a": "a"}),
        # without the final piece of version 0.1 there remains an empty one
        ("a b\nab </w>\n", ["ab@@"], {"ab": "ab@@ "}),
    ],
)
def test_merges(tmp_path, merges, labels, words):
    options = {"bpe_file": _file(tmp_path, "codes.gz", merges), "labels": ["<unk>", *labels], "unknown_label": 0}
    vocab = make_vocabulary(options)
    assert isinstance(vocab, BytePairEncoding)
    for word, pieces in words.items():
        assert vocab.pieces("%s  %s" % (word, word)) == pieces.split(" ") * 2
        if pieces in labels:
            assert vocab.get_seq(word) == [vocab.labels.index(pieces)]


def test_groups_stay_whole(tmp_path):
    options = {"bpe_file": _file(tmp_path, "codes", "#version: 0.2\nx y</w>\n"), "labels": ["u"], "unknown_label": "u"}
    split = make_vocabulary(options).pieces
    assert split("$ab {cd ef} gh") == ["$ab", "{cd", "ef}", "g@@", "h"]
    assert split("$ab {cd} gh") == ["$ab", "{cd}", "g@@", "h"]
    assert split("{cd ef}") == ["{@@", "c@@", "d", "e@@", "f@@", "}"]
    assert split("$ab cd {ef}") == ["$ab", "c@@", "d", "{@@", "e@@", "f@@", "}"]


def test_forms_of_no_unknown_label():
    for none in (None, -1):
        vocab = Vocabulary(labels=LABELS, unknown_label=none)
        assert vocab.unknown_label_id is None and vocab.unknown_label is None
        with pytest.raises(DataError, match="'c' is not among its 3 labels"):
            vocab.get_seq("a c")
        assert vocab.label_to_id("c", default=7) == 7


def test_sampling_is_of_labels_and_repeats():
    labels = ["<unk>", "a", "b", "ab", "a@@", "b@@", "ab@@", "ba@@"]
    options = {"labels": labels, "unknown_label": 0, "breadth_prob": 0.6, "seq_postfix": [0]}
    vocab = make_vocabulary({"class": "SamplingBytePairEncoding", **options})
    seen = set()
    for seed in range(20):
        vocab.set_random_seed(seed)
        first = vocab.get_seq("abab")
        assert "".join(labels[i] for i in first[:-1]).replace("@@", "") == "abab" and first[-1] == 0
        seen.add(tuple(first))
        vocab.set_random_seed(seed)
        assert vocab.get_seq("abab") == first
    assert len(seen) > 3
    vocab.set_random_seed([3, 7])  # epoch and sequence
    assert vocab.get_seq("abc") == [0, 0]
    never = SamplingBytePairEncoding(labels=labels, unknown_label=0, breadth_prob=0.0, label_postfix_merge_symbol="@@")
    assert never.pieces("abab bab") == ["ab@@", "ab", "ba@@", "b"]


def test_sampling_with_sentencepiece():
    pytest.importorskip("sentencepiece")
    options = {"class": "SentencePieces", "model_file": str(ROOT / "text" / "spm.model"), "enable_sampling": True}
    vocab = make_vocabulary({**options, "alpha": 0.1, "nbest_size": -1})
    runs = []
    for seed in (1, 2, 1):
        vocab.set_random_seed(seed)
        runs.append([vocab.get_seq("the small boat crosses the lake") for _ in range(5)])
    assert runs[0] == runs[2] != runs[1]
    assert vocab_labels("classes", options) == vocab.labels


def test_serialize():
    vocab = Vocabulary(labels=LABELS, unknown_label=None)
    assert vocab.serialize_labels(np.array(1)) == "a"
    assert vocab.serialize_labels(np.array([1, 2])) == "a b"
    assert vocab.serialize_labels(np.array([[1, 2], [2, 0]])) == "[a b],[b <s>]"
    with pytest.raises(DataError, match="there is no label 3, only 0 to 2"):
        vocab.get_seq_labels([3])
    with pytest.raises(DataError, match="no UTF-8"):
        make_vocabulary({"class": "Utf8ByteTargets"}).get_seq_labels([255, 0])


def test_labels_alone_need_no_unknown_label():
    assert vocab_labels("classes", {"labels": lambda: LABELS}) == LABELS
    assert vocab_labels("classes", CharacterTargets(labels=LABELS, unknown_label=None)) == LABELS
    assert vocab_labels("classes", {"bpe_file": "missing", "vocab_file": str(ROOT / "text/bpe01.vocab")})[1] == "the"
    with pytest.raises(ConfigError, match=r"extern_data\['classes'\]: vocab: .*either 'vocab_file' or 'labels'"):
        vocab_labels("classes", {"class": "Vocabulary"})


@pytest.mark.parametrize(
    "lines, fix",
    [
        (["a@@ 121", "the 40", "b 40", "z@@ 1"], "cut -d' ' -f1 FILE > NEW"),
        (["<unk>", "<s>", "a@@ 121", "the 40"], "but 'a@@ 121' has a number"),
        (["a@@ 121", "the 40", "</s>"], "add the labels that you need for unknown words and the end"),
        (["<unk>\t0", "<s>\t0", "\u2581the\t-3.25", "s\t-3.5", "q\t-1e-05"], None),
        (["<unk>\t0", "<s>\t0", "\u2581the\t-3.25", "s\t-3.5"], "cut -f1 FILE > NEW"),
        (["a 0", "b 1", "c 2"], "but 'a 0' has a number"),
        (["sil 0", "sil 1", "sil 2", "aa 0"], None),
        (["a 1", "b 0", "c 2"], None),
        (["one 1"], None),
        (["a 3", "b 2", "c d"], None),
        (["a 2", "b", "c", "d", "e"], None),
        (["3", "2", "1"], None),
        ([" ", "a", "b"], None),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_numbers_after_labels(lines, fix, end, tmp_path):
    """Counts of other programs do not become parts of labels; labels may end with numbers for other reasons."""
    path = tmp_path / "vocab"
    path.write_bytes("".join(line + end for line in lines).encode())
    if fix is None:
        assert read_labels(str(path)) == lines
        return
    with pytest.raises(DataError, match="vocab_file '.*vocab': each line must be a label alone, but ") as error:
        read_labels(str(path))
    assert fix in str(error.value)
