"""Parallel corpora and texts by tag: all recorded ones, their neighbours, and files that are none."""

from __future__ import annotations

import gzip
import pickle

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.recorded import ROOT, assert_same_sequences, by_name, dataset_info, load_json

TEXT = ROOT / "text"
RECORDINGS = "translation_dataset", "translation_factors", "text_dict_dataset"
CASES = {
    (recording, name): case
    for recording in RECORDINGS
    for name, case in by_name(load_json("text/%s.json" % recording)).items()
}


def _options(options):
    options = dict(options)
    for key in ("path", "filename"):
        if key in options:
            options[key] = str(TEXT / options[key]) if options[key] != "mt" or "file_postfix" in options else None
    if options["class"] == "TranslationFactorsDataset":
        options["path"] = str(TEXT / "mtf")
    if "vocab" in options:
        options["vocab"] = {**options["vocab"], "vocab_file": str(TEXT / options["vocab"]["vocab_file"])}
    return options


@pytest.mark.parametrize("recording, name", CASES, ids=["%s %s" % key for key in CASES])
def test_recorded(recording, name):
    case = CASES[recording, name]
    dataset = Dataset.from_config(_options(case["options"]))
    if "exception" in case:
        with pytest.raises(DataError, match="Set item_format to 'single'"):
            list(dataset.sequences(1))
        return
    got, expected = dataset_info(dataset), case["dataset"]
    unknown = {key for key, value in expected.items() if str(value).startswith("exception")}
    if recording != "text_dict_dataset":
        unknown.add("per_key")  # by the letters of a message there
    assert {key: got[key] for key in expected if key not in unknown} == {
        key: value for key, value in expected.items() if key not in unknown
    }
    for epoch, sequences in case["epochs"].items():
        assert_same_sequences(dataset.sequences(int(epoch)), sequences)


WORDS = {"<unk>": 0, "a": 1, "b": 2, "</s>": 3}


def _corpus(tmp_path, source="a b\nb\n", target="b\na a\n", vocab=WORDS, **others):
    """Return a folder with a parallel corpus."""
    content = {"source.train": source, "target.train": target, "source.vocab.pkl": vocab, "target.vocab.pkl": vocab}
    for name, value in {**content, **others}.items():
        if value is None:
            continue
        if isinstance(value, dict):
            value = pickle.dumps(value)
        elif isinstance(value, str):
            value = value.encode()
        (tmp_path / name).write_bytes(gzip.compress(value) if name.endswith(".gz") else value)
    return {"class": "TranslationDataset", "path": str(tmp_path), "file_postfix": "train", "unknown_label": "<unk>"}


def _lists(dataset, **args):
    return [
        {"tag": seq.tag, **{key: value.tolist() for key, value in seq.data.items()}}
        for seq in dataset.sequences(**args)
    ]


def test_all_lines_are_sequences(tmp_path):
    """Also empty ones, those of blanks, with CR at the end, and a last one without newline."""
    options = _corpus(tmp_path, source="\r\n  \t\na\u3000c \r\n\nb", target="\na\n\n\n\n")
    dataset = Dataset.from_config({**options, "source_postfix": " </s>"})
    assert [seq["data"] for seq in _lists(dataset)] == [[3], [3], [1, 0, 3], [3], [2, 3]]
    assert [seq["classes"] for seq in _lists(dataset)] == [[], [1], [], [], []]
    assert dataset.seq_lengths().tolist() == [1, 1, 3, 1, 2]


@pytest.mark.parametrize("postfix, lengths", [("", [2, 1]), ("</s>", [2, 1]), (" </s>", [3, 2]), (" </s> b", [4, 3])])
def test_length_counts_the_postfix(tmp_path, postfix, lengths):
    dataset = Dataset.from_config({**_corpus(tmp_path), "source_postfix": postfix})
    assert dataset.seq_lengths().tolist() == [len(seq["data"]) for seq in _lists(dataset)] == lengths


def test_explicit_orders(tmp_path):
    options = _corpus(tmp_path, source="a\nb\n\na b\n", target="a\nb\n\na b\n")
    dataset = Dataset.from_config({**options, "seq_ordering": "sorted_reverse", "partition_epoch": 2})
    assert [seq["tag"] for seq in _lists(dataset, epoch=1)] == ["line-3", "line-0"]
    assert [seq["data"] for seq in _lists(dataset, seq_list=["line-3", "line-0", "line-3"])] == [[1, 2], [1], [1, 2]]
    assert [seq["tag"] for seq in _lists(dataset, seq_order=[2, 1])] == ["line-2", "line-1"]
    for tag in ("line-4", "line-03", "line--1", "line-", "3", "nope-1"):
        with pytest.raises(DataError, match="has no sequence .*only 'line-0' to 'line-3'"):
            _lists(dataset, seq_list=[tag])


def test_list_of_lines(tmp_path):
    options = _corpus(tmp_path, source="a\nb\n\na b\n", target="a\nb\n\na b\n")
    (tmp_path / "list").write_text("3\nline-1\n")
    dataset = Dataset.from_config({**options, "seq_list_file": str(tmp_path / "list")})
    assert [(seq["tag"], seq["classes"]) for seq in _lists(dataset)] == [("line-3", [1, 2]), ("line-1", [2])]
    assert dataset.num_seqs == 2 and dataset.seq_lengths().tolist() == [2, 1]
    assert [seq["tag"] for seq in _lists(dataset, seq_list=["line-1"])] == ["line-1"]
    (tmp_path / "list").write_text("4\n")
    with pytest.raises(DataError, match="has no sequence 'line-4'"):
        _lists(Dataset.from_config({**options, "seq_list_file": str(tmp_path / "list")}))


def test_vocabulary_with_gaps(tmp_path):
    """The dim is the largest id + 1; there are no names then."""
    dataset = Dataset.from_config(_corpus(tmp_path, vocab={"<unk>": 1, "a": 5, "b": 0}))
    assert dataset.num_outputs == {"data": (6, 1), "classes": (6, 1)} and dataset.labels == {}
    assert [seq["data"] for seq in _lists(dataset)] == [[5, 0], [0]]


BAD_CORPORA = {
    "no folder": ({}, {"path": "nothing"}, "there is neither 'nothing/source.train' nor 'source.train.gz'"),
    "no target": ({"target.train": None}, {}, "neither .*target.train' nor 'target.train.gz'"),
    "no vocabulary": ({"target.vocab.pkl": None}, {}, "target.vocab.pkl' does not exist"),
    "vocabulary of code": ({"source.vocab.pkl": pickle.dumps({"a": print})}, {}, "source.vocab.pkl'.*builtins.print"),
    "list as vocabulary": ({"source.vocab.pkl": pickle.dumps(["a"])}, {}, "expected a dict {label: id"),
    "id beyond int32": ({"source.vocab.pkl": pickle.dumps({"a": 2**31 - 1})}, {}, "label 'a' has the id 2147483647"),
    "text as vocabulary": ({"source.vocab.pkl": "a\nb\n"}, {}, "source.vocab.pkl': only plain"),
    "unknown unknown_label": ({}, {"unknown_label": "UNK"}, "unknown_label 'UNK' is not in the vocabulary .*source"),
    "unknown word": ({}, {"unknown_label": {"classes": "a"}, "file_postfix": "dev"}, "source.dev', line 2: 'c' is not"),
    "unknown target": ({}, {"unknown_label": {"data": "a"}, "file_postfix": "dev"}, "target.dev', line 1: 'd' is not"),
    "lines": ({"target.train": "a\n"}, {}, r"source.train' \(2\) and .*target.train' \(1\) have different numbers"),
    "empty": ({"source.train": ""}, {}, "source.train' is empty"),
    "not UTF-8": ({"source.train": b"a\n\xff\n"}, {}, "source.train', line 2: it is not UTF-8"),
    "not gzip": ({"target.train": None, "target.train.gz": b""}, {}, "target.train.gz' is empty"),
    "factors": ({}, {"class": "TranslationFactorsDataset", "source_factors": ["data"]}, "must be different names"),
    "no factors": (
        {"f.vocab.pkl": WORDS}, {"class": "TranslationFactorsDataset", "source_factors": ["f"]},
        "source.train', line 1: 'a' has 0 factors, but each word has 1 factors"),
    "no unknown": ({}, {"class": "ConfusionNetworkDataset", "unknown_label": None}, "needs unknown_label"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CORPORA)
def test_bad_corpora(tmp_path, name):
    files, options, text = BAD_CORPORA[name]
    others = {"source.dev": "a\nc\n", "target.dev": "d\na\n", **files}
    corpus = {**_corpus(tmp_path, **others), **options}
    with pytest.raises((ConfigError, DataError), match=text):
        list(Dataset.from_config(corpus).sequences(1))


def test_factors_of_both_sides(tmp_path):
    corpus = _corpus(tmp_path, source="a/a/b b/b/a\n", target="b/a\n", **{"%s.vocab.pkl" % f: WORDS for f in "fgh"})
    options = {
        "source_factors": ["f", "g"],
        "target_factors": ["h"],
        "factor_separator": "/",
        "target_postfix": " </s>",
    }
    dataset = Dataset.from_config({**corpus, "class": "TranslationFactorsDataset", **options})
    assert list(dataset.num_outputs) == ["data", "classes", "f", "g", "h"]
    (seq,) = _lists(dataset)
    assert seq == {"tag": "line-0", "data": [1, 2], "f": [1, 2], "g": [2, 1], "classes": [2, 3], "h": [1, 3]}


def test_confusion_networks(tmp_path):
    corpus = _corpus(tmp_path, source="__ALT__ a|0.75__b|0.25 x|1\na b\n", target="a\nb\n")
    options = {"class": "ConfusionNetworkDataset", "max_density": 3, "source_postfix": " </s>"}
    dataset = Dataset.from_config({**corpus, **options})
    assert dataset.num_outputs == {"sparse_inputs": (4, 2), "sparse_weights": (3, 2), "classes": (4, 1)}
    assert dataset.data_specs["sparse_inputs"].sparse and dataset.target_list == ["classes"]
    first, second = _lists(dataset)
    assert first["sparse_inputs"] == [[1, 2, 0], [0, 0, 0], [3, 0, 0]]
    assert first["sparse_weights"] == [[0.75, 0.25, 0], [1, 0, 0], [1, 0, 0]]
    assert second["sparse_weights"] == [[1, 0, 0]] * 3 and first["classes"] == [1]
    assert dataset.seq_lengths().tolist() == [3, 3]
    for line, text in (("a", "expected 'word|weight'"), ("a|x", "expected"), ("a|1__b|1__a|1__b|1", "4 alternatives")):
        _corpus(tmp_path, source="__ALT__ %s\n" % line, target="a\n")
        with pytest.raises(DataError, match="source.train', line 1: .*%s" % text.replace("|", r"\|")):
            _lists(Dataset.from_config({**corpus, **options}))


@pytest.mark.parametrize("name", ["tool_translation", "tool_translation_factors"])
def test_same_as_converted_to_hdf(tmp_path, name):
    """The recorded HDF files were made of the same texts by another program, with </S> at the end of each line."""
    factors = name.endswith("factors")
    prefix = ROOT / "hdf"
    names = {
        "source.train": "mtf.src.txt" if factors else "mt.src.txt",
        "target.train": "mt.tgt.txt",
        "source.vocab.pkl": "mt.src.vocab.pkl",
        "target.vocab.pkl": "mt.tgt.vocab.pkl",
        "factor.vocab.pkl": "mtf.factor.vocab.pkl",
    }
    for to, given in names.items():
        (tmp_path / to).write_bytes((prefix / given).read_bytes())
    options = {"source_postfix": " </S>", "target_postfix": " </S>", "unknown_label": "<UNK>", "path": str(tmp_path)}
    if factors:
        options["source_factors"] = ["factor"]
    kind = "TranslationFactorsDataset" if factors else "TranslationDataset"
    dataset = Dataset.from_config({"class": kind, "file_postfix": "train", **options})
    hdf = Dataset.from_config({"class": "HDFDataset", "files": [str(prefix / (name + ".hdf"))]})
    converted = {key for key in hdf.data_keys if key in ("data", "classes", *options.get("source_factors", ()))}
    assert len(converted) >= 2
    for seq, other in zip(dataset.sequences(1), hdf.sequences(1)):
        for key in converted:
            np.testing.assert_array_equal(seq.data[key], other.data[key])
            assert seq.tag == other.tag


def _dict_options(tmp_path, content, **options):
    (tmp_path / "texts.py").write_text(content)
    vocab = {"labels": list(WORDS), "unknown_label": "<unk>", "seq_postfix": [3]}
    return {"class": "TextDictDataset", "filename": str(tmp_path / "texts.py"), "vocab": vocab, **options}


def test_best_of_a_beam(tmp_path):
    content = "{'x': [(nan, 'a'), (-inf, 'a b'), (-2, 'b'), (-2.0, 'b b')], 'y': [(inf, '')], 'z': [(nan, 'a')]}"
    dataset = Dataset.from_config(_dict_options(tmp_path, content, seq_ordering="sorted"))
    y, z, x = _lists(dataset)  # by the characters of all texts
    assert [seq["tag"] for seq in (x, y, z)] == ["x", "y", "z"]
    assert x["data"] == [2, 3] and x["data_seq_lens"] == [2, 3, 2, 3] and y["data"] == [3] and z["data"] == [1, 3]
    assert x["data_flat"] == [1, 3, 1, 2, 3, 2, 3, 2, 2, 3]
    assert [seq["tag"] for seq in _lists(dataset, seq_list=["z", "x"])] == ["z", "x"]


@pytest.mark.parametrize(
    "content, options, text",
    [
        ("{'x': ", {}, "does not hold a Python literal"),
        ("['x']", {}, "must hold a dict from tags"),
        ("{1: 'a'}", {"item_format": "single"}, "must hold a dict from tags"),
        ("{'x': open('y')}", {}, "does not hold a Python literal"),
        ("{'x': infinity}", {}, "does not hold a Python literal"),
        ("{'x': []}", {}, r"'x' has \[\], but must have a list of \(score, text\)"),
        ("{'x': [('a', 1.0)]}", {}, "'x' has .*must have a list of"),
        ("{'x': [(1.0, 'a')]}", {"item_format": "single"}, "Set item_format to 'list_with_scores'"),
        ("{}", {}, "is empty: it has no sequences"),
        ("", {}, "does not hold a Python literal"),
        ("{'x': 'a'}", {"filename": "nothing"}, "'nothing' does not exist"),
        ("{'x': 'a'}", {"item_format": "best"}, "item_format"),
        (
            "{'x': 'c'}",
            {"item_format": "single", "vocab": {"labels": ["a"], "unknown_label": None}},
            "sequence 'x'.*'c' is",
        ),
    ],
)
def test_bad_dicts(tmp_path, content, options, text):
    with pytest.raises((ConfigError, DataError), match=text):
        list(Dataset.from_config(_dict_options(tmp_path, content, **options)).sequences(1))
