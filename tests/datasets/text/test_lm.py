"""LmDataset: all recorded corpora, their neighbours, and files that are no corpora."""

from __future__ import annotations

import gzip
import json
import pickle

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset, dataset_from_config
from returnn_tf.datasets.core.share import Share
from tests.datasets.recorded import ROOT, assert_same_sequences, by_name, check_resumption, dataset_info, load_json

FILES = (
    "corpus_file", "orth_symbols_file", "orth_symbols_map_file", "orth_replace_map_file", "seq_list_file", "vocab_file",
    "bpe_file", "lexicon_file", "phoneme_vocab_file", "state_tying_file",
)  # fmt: skip
RECORDINGS = {"text/lm_dataset.json": "text", "text/lm_phones.json": "text", "lm2/lm2.json": "lm2"}


def _cases(name):
    content = load_json(name)
    return by_name(content.get("cases", content) if isinstance(content, dict) else content)


CASES = {(file, name): case for file in RECORDINGS for name, case in _cases(file).items()}


def _path(value, folder):
    if isinstance(value, list):
        return [_path(entry, folder) for entry in value]
    if isinstance(value, str) and value.startswith("function -> "):
        value = value[len("function -> ") :]
        result = [_path(value[1:-1], folder)] if value.startswith("[") else _path(value, folder)
        return lambda: result
    return str(ROOT / folder / value) if value else value


def _recorded_options(options, folder):
    result = {}
    for key, value in options.items():
        if isinstance(value, dict):
            value = _recorded_options(value, folder)
        result[key] = _path(value, folder) if key in FILES else value
    return result


def _info(dataset):
    info = dataset_info(dataset)
    info["all_tags"] = [dataset.tag(index) for index in range(dataset.num_seqs)]
    return info


def _assert_same_format(dataset, expected):
    got = _info(dataset)
    for key, labels in expected["labels"].items():
        if isinstance(labels, dict):
            names = got["labels"][key]
            got["labels"][key] = {"len": len(names), "first": names[: len(labels["first"])]}
    assert {key: got[key] for key in expected} == expected


@pytest.mark.parametrize("file, name", CASES, ids=["%s %s" % key for key in CASES])
def test_recorded(file, name):
    case = CASES[file, name]
    options = _recorded_options(case["options"], RECORDINGS[file])
    if "exception" in case and name != "delayed_with_orth_vocab":
        with pytest.raises((ConfigError, DataError)):
            list(Dataset.from_config(options).sequences(1))
        return
    if name == "delayed_with_orth_vocab":  # recorded as failing; there is no reason to fail with a known start symbol
        options["delayed_seq_data_start_symbol"] = "<sb>"
        for seq in Dataset.from_config(options).sequences(1):
            assert seq.data["delayed"].tolist() == [0, *seq.data["data"][:-1]]
        return
    dataset = Dataset.from_config(options)
    _assert_same_format(dataset, case["dataset"])
    for epoch, expected in case.get("epochs", {}).items():
        # recorded where the number was too high: the epoch just ends here
        expected = [seq for seq in expected if "tag" in seq]
        assert_same_sequences(dataset.sequences(int(epoch)), expected)
    for run in case.get("runs", []):
        if "exception" in run:
            with pytest.raises(DataError):
                list(dataset.sequences(**run["args"]))
        else:
            assert_same_sequences(dataset.sequences(**run["args"]), run["seqs"])


def _file(tmp_path, name, content):
    path = tmp_path / name
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


SYMBOLS = "[END]\n[UNKNOWN]\n[START]\n \na\nb\nc\n[X Y]\n"
WORDS = "[END]\n[UNKNOWN]\n[START]\na\nb\nab\n[X Y]\n[X]z\n[x]\n"


def _options(tmp_path, text, symbols=SYMBOLS, **options):
    return {
        "class": "LmDataset",
        "corpus_file": _file(tmp_path, "corpus", text),
        "orth_symbols_file": _file(tmp_path, "symbols", symbols),
        **options,
    }


def _texts(dataset, key="data", sign="|", **args):
    labels = dataset.data_specs["data"].labels
    return [sign.join(labels[i] for i in seq.data[key]) for seq in dataset.sequences(**{"epoch": 1, **args})]


@pytest.mark.parametrize(
    "text, options, expected",
    [
        # characters
        ("a(b) {c}", {}, "a|b| |c|[END]"),
        (" a \t b ", {}, "a| |b|[END]"),
        ("a  b", {"parse_orth_opts": {"collapse_spaces": False}}, "a| |b|[END]"),  # blanks are joined again
        ("a[x y]b", {}, "a|[X Y]|b|[END]"),
        ("a [x y]", {"word_end_symbol": "[START]"}, "a|[START]|[X Y]|[START]|[END]"),
        ("a b", {"word_end_symbol": "[START]", "seq_end_symbol": None}, "a|[START]|b|[START]"),
        ("a", {"parse_orth_opts": {"prefix": ["[START]", "b"], "postfix": ["c"]}}, "[START]|b|a|c"),
        ("(a)", {"parse_orth_opts": {"remove_chars": "a()"}}, "[END]"),
        ("a", {"orth_post_process": lambda text: text + "b"}, "a|b|[END]"),
        ("x", {"auto_replace_unknown_symbol": True}, "[UNKNOWN]|[END]"),
        ("axb", {"auto_replace_unknown_symbol": True, "unknown_symbol": None}, "a|b|[END]"),
        ("[x y", {}, "[X Y]|[END]"),
    ],
)
def test_characters(tmp_path, text, options, expected):
    symbols = SYMBOLS.replace("[X Y]", "[X Y") if text == "[x y" else SYMBOLS
    expected = expected.replace("[X Y]", "[X Y") if text == "[x y" else expected
    assert _texts(Dataset.from_config(_options(tmp_path, text + "\n", symbols, **options))) == [expected]


@pytest.mark.parametrize(
    "text, options, expected",
    [
        ("a  ab\u00a0b", {}, "a|ab|b|[END]"),
        ("(a) {b}", {}, "a|b|[END]"),
        ("a [x y] b", {}, "a|[X Y]|b|[END]"),
        ("a[x y]", {}, "a|[X Y]|[END]"),
        ("[x]z a", {}, "[X]z|a|[END]"),
        ("[x]", {"parse_orth_opts": {"square_brackets_for_specials": False}}, "[x]|[END]"),
        ("[x]", {"parse_orth_opts": {"upper_case_special": False}}, "[x]|[END]"),
        ("a b", {"word_based": False, "parse_orth_opts": {"word_based": True}}, "a|b|[END]"),
    ],
)
def test_words(tmp_path, text, options, expected):
    dataset = Dataset.from_config(_options(tmp_path, text + "\n", WORDS, **{"word_based": True, **options}))
    assert _texts(dataset) == [expected]


@pytest.mark.parametrize(
    "table, text, expected",
    [
        ({"x": "ab", "c": ""}, "xac", "a|b|a|[END]"),
        ({"x": "", "a": " "}, "b axa b", "b| |b|[END]"),  # neighbouring blanks are joined
        # what replaces an unknown symbol is replaced, too; and then the others once more
        ({"a": "b", "b": "c"}, "a", "b|[END]"),
        ({"a": "b", "b": "c"}, "a?", "c|[UNKNOWN]|[END]"),
        ({"a": "?", "b": "a"}, "b", "a|[END]"),
    ],
)
def test_replacements(tmp_path, table, text, expected):
    path = _file(tmp_path, "replace.json", json.dumps(table))
    for other in ("", "??? a\n"):  # what came before has no influence
        options = _options(tmp_path, other + text + "\n", orth_replace_map_file=path, auto_replace_unknown_symbol=True)
        assert _texts(Dataset.from_config(options))[-1] == expected


def test_forms_of_symbol_maps(tmp_path):
    for name, content in {
        "map.json": '{"[END]": 0, "a": 1}',
        "map": '{"[END]": 0}',
        "map.txt": "[END] 0\na\t 1 \n\n",
        "map.gz": "{ '[END]':0,\n'a':1}",
        "map.pkl": pickle.dumps({"[END]": 0, "a": 1, "A": 1}),
    }.items():
        options = _options(tmp_path, "\n", orth_symbols_map_file=_file(tmp_path, name, content), orth_symbols_file=None)
        dataset = Dataset.from_config({**options, "skip_empty_lines": False})
        assert _texts(dataset) == ["[END]"] and dataset.num_outputs["data"][0] == (1 if name == "map" else 2)


def test_tags_and_explicit_orders(tmp_path):
    options = _options(tmp_path, "a\n\nb\nc\n", seq_ordering="reverse", add_delayed_seq_data=True)
    options["corpus_file"] = [options["corpus_file"], _file(tmp_path, "more.gz", "a b\n \nb c")]
    dataset = Dataset.from_config(options)
    assert [seq.tag for seq in dataset.sequences(1)] == ["line-%d" % i for i in (4, 3, 2, 1, 0)]
    assert _texts(dataset, seq_list=["line-4", "line-0", "line-4"]) == ["b| |c|[END]", "a|[END]", "b| |c|[END]"]
    assert _texts(dataset, "delayed", seq_order=[3, 1]) == ["[START]|a| |b", "[START]|b"]
    assert dataset.seq_lengths().tolist() == [1, 1, 1, 3, 3]
    assert dataset.file_of(3).endswith("more.gz")
    for tag in ("line-5", "line-01", "5", "line--1", "line-²"):
        with pytest.raises(DataError, match="has no sequence .*only 'line-0' to 'line-4'"):
            _texts(dataset, seq_list=[tag])
    tags = [_file(tmp_path, "tags", "t0\nt1\nt2\n"), _file(tmp_path, "tags.gz", "u0\nu1\n")]
    for given in (tags, _file(tmp_path, "all.pkl", pickle.dumps(["t0", "t1", "t2", "u0", "u1"]))):
        dataset = Dataset.from_config({**options, "seq_list_file": given})
        assert _texts(dataset, seq_list=["u1", "t0"]) == ["b| |c|[END]", "a|[END]"]
        with pytest.raises(DataError, match="has no sequence 'line-0'"):
            _texts(dataset, seq_list=["line-0"])


def test_only_the_first_lines(tmp_path):
    options = _options(tmp_path, "a\nb\nc\n")
    options["corpus_file"] = [options["corpus_file"]] * 2
    config = {"train": options, "lm_dataset_debug_limit_line_count": 4}
    assert _texts(dataset_from_config(config, "train")) == ["a|[END]", "b|[END]", "c|[END]", "a|[END]"]
    config["lm_dataset_debug_limit_line_count"] = 1
    assert _texts(dataset_from_config(config, "train", seq_ordering="sorted")) == ["a|[END]"]


def test_an_open_last_line_is_told(tmp_path, caplog):
    assert _texts(Dataset.from_config(_options(tmp_path, "a\nb"))) == ["a|[END]"]
    assert "corpus' does not end with a newline, so its last line is not read" in caplog.text


def test_skipped_sequences_are_told(tmp_path, caplog):
    text = "a\n" + "x\nb\n" * 12
    dataset = Dataset.from_config(_options(tmp_path, text, error_on_invalid_seq=False, log_skipped_seqs=2))
    assert _texts(dataset) == ["a|[END]"] + ["b|[END]"] * 12
    assert caplog.text.count("is skipped: file") == 2 and "12 of 25 sequences of epoch 1 were skipped" in caplog.text
    batches = list(dataset.batches(1, batch_size=4, max_seqs=2))
    assert [batch.seq_tags for batch in batches][:2] == [["line-0", "line-2"], ["line-4", "line-6"]]
    assert _texts(dataset, seq_order=[2, 1, 0]) == ["b|[END]", "a|[END]"]
    # what was asked for by tag is not left out
    with pytest.raises(DataError, match="sequence 'line-1' .*corpus', line 2: 'x': 'x' is not among the 8 symbols"):
        _texts(dataset, seq_list=["line-1"])


def test_damaged_text_is_not_skipped(tmp_path):
    options = _options(tmp_path, b"a\nb\xff\n", error_on_invalid_seq=False)
    with pytest.raises(DataError, match="line 2: it is not UTF-8"):
        _texts(Dataset.from_config(options))


PHONES = {
    "class": "LmDataset",
    "corpus_file": str(ROOT / "lm2" / "phon.txt"),
    "phone_info": {"lexicon_file": str(ROOT / "lm2" / "lex.xml"), "repetition": 0.3, "silence_repetition": 0.3},
    "seq_ordering": "random",
    "repeat_epoch": 3,
    "add_random_phone_seqs": 1,
}
SAMPLED = {
    "class": "LmDataset",
    "corpus_file": str(ROOT / "lm2" / "corpus.txt"),
    "orth_vocab": {
        "class": "SamplingBytePairEncoding", "labels": ["<unk>", *"abdnst", *("%s@@" % c for c in "abdnot"), "an@@"],
        "unknown_label": "<unk>", "breadth_prob": 0.6},
    "seq_ordering": "random",
}  # fmt: skip


def _same(first, second):
    assert [seq.tag for seq in first] == [seq.tag for seq in second] and first
    for one, other in zip(first, second):
        assert one.data.keys() == other.data.keys()
        for key, value in one.data.items():
            np.testing.assert_array_equal(value, other.data[key])


@pytest.mark.parametrize("options", [PHONES, SAMPLED, {**PHONES, "error_on_invalid_seq": False}])
def test_resume_within_an_epoch(options):
    """Also in a new process, after other epochs, and by batches; other epochs differ."""
    dataset = Dataset.from_config(options)
    first = list(dataset.sequences(2))
    list(dataset.sequences(1))
    again = pickle.loads(pickle.dumps(dataset))
    for start in (0, 1, 3):
        _same(list(again.sequences(2, start=start)), first[start:])
    check_resumption(again, 2, batch_size=300, max_seqs=2)
    whole = list(dataset.batches(2, batch_size=300, max_seqs=2))
    rest = list(again.batches(2, batch_size=300, max_seqs=2, start_batch=1))
    assert len(whole) == len(rest) + 1 and [batch.seq_tags for batch in whole[1:]] == [batch.seq_tags for batch in rest]
    for one, other in zip(whole[1:], rest):
        np.testing.assert_array_equal(one.feed["data"], other.feed["data"])
    by_tag = {seq.tag: seq.data["data"].tolist() for seq in dataset.sequences(3)}
    assert any(by_tag[seq.tag] != seq.data["data"].tolist() for seq in first)


@pytest.mark.parametrize("options", [PHONES, SAMPLED])
def test_ranks_read_each_sequence_once(options):
    dataset = Dataset.from_config({**options, "repeat_epoch": 1})
    parts = [
        [tag for batch in dataset.batches(1, batch_size=999, share=Share(rank=rank, size=2)) for tag in batch.seq_tags]
        for rank in range(2)
    ]
    assert sorted(parts[0] + parts[1]) == sorted(dataset.tag(i) for i in range(dataset.num_seqs))


LEXICON = (
    "<lexicon><phoneme-inventory><phoneme><symbol>s</symbol><variation>none</variation></phoneme><phoneme><symbol>a"
    "</symbol></phoneme></phoneme-inventory><lemma><orth>[SILENCE]</orth><phon>s</phon></lemma><lemma><orth>a</orth>"
    "<phon>a a</phon></lemma>%s</lexicon>"
)
BAD_PHONES = [
    ({"lexicon_file": "nothing.xml"}, "nothing.xml' can't be read"),
    ({"lexicon": "<lexicon>"}, "lexicon.xml' can't be read"),
    ({"lexicon": "<lexicon/>"}, "is no lexicon"),
    ({"lexicon": LEXICON.replace("[SILENCE]", "b") % ""}, r"has no lemma '\[SILENCE\]'.*Give silence_lemma_orth"),
    ({"lexicon": LEXICON % "<lemma><orth>b</orth></lemma>", "text": "a b\n"}, "'b' has no pronunciation"),
    ({"lexicon": LEXICON % "<lemma><orth>b</orth><phon>b</phon></lemma>", "text": "b\n"}, "phoneme 'b' has no label"),
    (
        {"lexicon": LEXICON % "<lemma><orth>a</orth><phon>a</phon></lemma>"},
        "'a' has different pronunciations in several",
    ),
    ({"text": "a\na-x\n"}, "line 2: 'a-x': 'x' is not in the lexicon"),
    ({"tying": "a{#+a}@i.0\n"}, "line 1: expected 'allophone.state class'"),
    ({"tying": "a{#+a}@i.0 x\n"}, "line 1: expected"),
    ({"tying": "a{#+a}@i.0 1\n"}, "the class 0 has no states"),
    ({"tying": ""}, "tying' is empty"),
    ({"tying": "a{#+a}@i.0 0\n"}, r"state '.*' is not in state_tying_file"),
    ({"tying": "x 0\n", "phoneme_vocab_file": "x"}, "phoneme_vocab_file or state_tying_file, not both"),
    ({"vocab": "x\n"}, "phoneme '.' has no label"),
    ({"repetition": 1.0}, "'repetition' must be at least 0 and below 1"),
    ({"add_silence_end": 1.5}, "'add_silence_end' must be from 0 to 1"),
    ({"phon_pick_strategy": "last"}, "phon_pick_strategy"),
    ({"allo_num_state": 3}, "unknown option 'allo_num_state'. Did you mean 'allo_num_states'"),
]


@pytest.mark.parametrize("changes, text", BAD_PHONES, ids=[text for _, text in BAD_PHONES])
def test_bad_phones(tmp_path, changes, text):
    changes = dict(changes)
    info = {"lexicon_file": _file(tmp_path, "lexicon.xml", changes.pop("lexicon", LEXICON % ""))}
    corpus = _file(tmp_path, "corpus", changes.pop("text", "a\n"))
    for key, option in (("tying", "state_tying_file"), ("vocab", "phoneme_vocab_file")):
        if key in changes:
            info[option] = _file(tmp_path, key, changes.pop(key))
    options = {"class": "LmDataset", "corpus_file": corpus, "phone_info": {**info, **changes}}
    with pytest.raises((ConfigError, DataError), match=text):
        list(Dataset.from_config(options).sequences(1))


BAD_OPTIONS = [
    ({"corpus_file": "nothing.txt"}, "corpus_file 'nothing.txt' does not exist"),
    ({"corpus_file": "."}, "corpus_file '.' is not a file"),
    ({"corpus_file": []}, "corpus_file names no file"),
    ({"corpus_file": lambda: "nothing.txt"}, "corpus_file 'nothing.txt' does not exist"),
    ({"orth_symbols_file": "nothing.txt"}, "'nothing.txt' does not exist"),
    ({"orth_symbols_file": None}, "give one of orth_vocab, .*; there is none of them"),
    ({"orth_symbols_map_file": "x"}, "both orth_symbols_file and orth_symbols_map_file"),
    ({"orth_symbols_file": None, "orth_symbols_map_file": lambda: None}, "function of the symbols returns no file"),
    ({"orth_symbols_file": None, "orth_vocab": {"labels": ["a"]}}, "LmDataset.*: orth_vocab: .*unknown_label"),
    (
        {"orth_symbols_file": None, "orth_vocab": {"labels": ["UNK"]}, "word_based": True},
        "word_based has no effect toge",
    ),
    (
        {"orth_symbols_file": None, "orth_vocab": {"labels": ["UNK"]}, "auto_replace_unknown_symbol": True},
        "auto_replace_unknown_symbol has no effect",
    ),
    ({"add_random_phone_seqs": 1}, "add_random_phone_seqs needs phone_info"),
    ({"word_based": True, "word_end_symbol": "a"}, "word_end_symbol is for characters"),
    ({"dtype": "float32"}, "dtype 'float32' can't hold 8 labels; use 'int8'"),
    ({"dtype": "ints"}, "dtype 'ints' is not known"),
    (
        {"add_delayed_seq_data": True, "delayed_seq_data_start_symbol": "?"},
        r"delayed_seq_data_start_symbol '\?' is not",
    ),
    ({"parse_orth_opts": {"prefx": []}}, "unknown option 'prefx'. Did you mean 'prefix'"),
    ({"orth_post_process": "lowercas"}, "orth_post_process: unknown name 'lowercas'"),
    ({"orth_post_process": lambda text: 1 / 0}, "sequence 'line-0'.*ZeroDivisionError"),
    ({"orth_post_process": lambda text: None}, "sequence 'line-0'"),
    ({"seq_list_file": "TAGS"}, "has 1 tags, but the corpus has 2 sequences"),
    ({"seq_list_file": ["TAGS"]}, "has 1 tags, but file .*corpus' has 2 sequences"),
    ({"seq_list_file": ["TAGS", "TAGS"]}, "2 files in seq_list_file, but 1 in corpus_file"),
    ({"orth_replace_map_file": "REPLACE"}, "replace' is no JSON"),
    ({"orth_replace_map_file": "nothing.json"}, "option 'orth_replace_map_file': file 'nothing.json' does not exist"),
    ({"seq_end_symbol": "[FIN]"}, r"'\[FIN\]' is not among the 8 symbols"),
    (
        {"seq_end_symbol": "[FIN]", "auto_replace_unknown_symbol": True, "unknown_symbol": "?"},
        r"unknown_symbol '\?' has n",
    ),
]


@pytest.mark.parametrize("changes, text", BAD_OPTIONS, ids=[text for _, text in BAD_OPTIONS])
def test_bad_options(tmp_path, changes, text):
    made = {"TAGS": _file(tmp_path, "tags", "x\n"), "REPLACE": _file(tmp_path, "replace", "x")}
    put = {key: made.get(value, value) if isinstance(value, str) else value for key, value in changes.items()}
    if isinstance(put.get("seq_list_file"), list):
        put["seq_list_file"] = [made[name] for name in put["seq_list_file"]]
    with pytest.raises((ConfigError, DataError), match=text):
        list(Dataset.from_config({**_options(tmp_path, "a\nb\n"), **put}).sequences(1))


BAD_SYMBOLS = [
    ("orth_symbols_file", "a\na\n", "'a' occurs twice, as line 1 and line 2"),
    ("orth_symbols_file", "", "no labels in it"),
    ("orth_symbols_map_file", "", "no labels in it"),
    ("orth_symbols_map_file", "a 0\nb\n", "line 2: expected 'symbol index', got 'b'"),
    ("orth_symbols_map_file", "a 0\nb c\n", "line 2: expected 'symbol index', got 'b c'"),
    ("orth_symbols_map_file", "a 0\nb 1\na 1\n", "line 3: 'a' has the index 1, but before 0"),
    ("orth_symbols_map_file", "a 0\nb 2\n", "none has the id 1"),
    ("orth_symbols_map_file", "{'a': 0, 'b': 2}", "none has the id 1"),
    ("orth_symbols_map_file", "{'a': 0, 'b': 1", "expected a dict"),
    ("orth_symbols_map_file", b"a 0\n\xff 1\n", "not a UTF-8"),
    ("orth_replace_map_file", '["a"]', "must hold a dict from symbols to texts"),
    ("orth_replace_map_file", '{"a": ["a"]}', "must hold a dict from symbols to texts"),
    ("orth_replace_map_file", '{"a": "aa?"}', "replaces symbols in circles"),
    ("orth_replace_map_file", '{"[UNKNOWN]": "a?"}', None),
]


@pytest.mark.parametrize("option, content, text", BAD_SYMBOLS)
def test_bad_symbols(tmp_path, option, content, text):
    options = _options(tmp_path, "a?\n", auto_replace_unknown_symbol=True)
    if option == "orth_symbols_map_file":
        del options["orth_symbols_file"]
    options[option] = _file(tmp_path, "given", content)
    if text is None:  # no circle
        assert _texts(Dataset.from_config(options)) == ["a|[UNKNOWN]|[END]"]
        return
    with pytest.raises((ConfigError, DataError), match=text):
        list(Dataset.from_config(options).sequences(1))


def test_phonemes_of_a_line_by_itself():
    """They do not depend on the lines before, but on how often the line has occurred."""
    dataset = Dataset.from_config(PHONES)
    chosen = [2, 0, 1, 2, 2]
    found = [tuple(seq.data["data"]) for seq in dataset.sequences(1, seq_order=chosen, by_itself=True)]
    again = [tuple(seq.data["data"]) for seq in dataset.sequences(1, seq_order=[1, 2, 2], by_itself=True)]
    assert again == [found[2], found[0], found[3]] and len({found[0], *found[3:]}) == 3
    inner = {"class": "MetaDataset", "datasets": {"a": PHONES}, "data_map": {"data": ("a", "data")}}
    combined = {"class": "CombinedDataset", "datasets": {"x": inner}, "data_map": {("x", "data"): "data"}}
    got = Dataset.from_config(combined).sequences(1, seq_order=chosen)
    assert [tuple(seq.data["data"]) for seq in got] == found
