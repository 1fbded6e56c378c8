"""Functions and values of configs in the options of datasets: what is wrong with them is one error that names them."""

from __future__ import annotations

import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.text.phones import PhoneOptions, PhoneSequences
from tests.datasets.test_librispeech import make as make_librispeech
from tests.datasets.test_oggzip import CHARS, make_zip


def fails(*args, **keywords):
    return 1 // 0


ZERO = "ZeroDivisionError: "
TASK = {"class": "Task12AX", "num_seqs": 2}
LM = {"class": "LmDataset", "corpus_file": "text", "orth_symbols_file": "symbols"}
MAP = {**LM, "orth_symbols_file": None}
OGG = {"class": "OggZipDataset", "path": "a.zip", "audio": None, "targets": CHARS}
LIBRI = {"class": "LibriSpeechCorpus", "path": ".", "prefix": "train", "audio": None, "use_zip": True}
COMBINED = {"class": "CombinedDataset", "datasets": {"x": TASK}, "data_map": {("x", "data"): "data"}}
FILES = {"class": "DistributeFilesDataset", "files": [__file__], "partition_epoch": 1}
MAPPED = {"class": "PostprocessingDataset", "dataset": TASK}

CASES = {
    "dataset": (fails, "function that returns a dataset: " + ZERO),
    "path": ({**OGG, "path": [3]}, "option 'path' must be a path, not 3"),
    "path_none": ({**LM, "corpus_file": lambda: None}, "corpus_file must be a path, not None"),
    "path_bytes": ({**LM, "corpus_file": lambda: [b"text"]}, "corpus_file must be a path, not b'text'"),
    "corpus_file": ({**LM, "corpus_file": fails}, "corpus_file: " + ZERO),
    "corpus_files": ({**LM, "corpus_file": ["text", fails]}, "corpus_file: " + ZERO),
    "symbols": ({**MAP, "orth_symbols_map_file": lambda: 3}, "orth_symbols_map_file must be a path, not 3"),
    "symbols_fail": ({**LM, "orth_symbols_file": fails}, "orth_symbols_file: " + ZERO),
    "replacements": ({**LM, "orth_replace_map_file": fails}, "orth_replace_map_file: " + ZERO),
    "lm_orth": ({**LM, "orth_post_process": [fails]}, "line-0.*orth_post_process: " + ZERO),
    "lm_orth_none": (
        {**LM, "orth_post_process": lambda text: None},
        "orth_post_process returned None for 'a', not a text",
    ),
    "ogg_orth": ({**OGG, "targets_post_process": lambda text: 3}, "targets_post_process returned 3 for 'the cat sat'"),
    "libri_orth": (
        {**LIBRI, "orth_post_process": lambda text: None},
        "sequence 'train-clean-100-19-198-0000' .*: orth_post_process returned None for 'A CAT', not a text",
    ),
    "libri_orth_fail": ({**LIBRI, "orth_post_process": fails}, "19-198-0000' .*: orth_post_process: " + ZERO),
    "libri_orth_length": (
        {**LIBRI, "orth_post_process": fails, "seq_ordering": "sorted"},
        "utterance 'train-clean-100-19-198-0000': orth_post_process: " + ZERO,
    ),
    "seq_ordering": ({**TASK, "seq_ordering": fails}, "seq_ordering: " + ZERO),
    "no_epoch": ({**TASK, "seq_ordering": lambda: "random"}, "seq_ordering: TypeError: .*'epoch'"),
    "dims": ({**COMBINED, "data_dims": {"data": "x"}}, "option 'data_dims': 'x' must be a dim or"),
    "dims_short": ({**COMBINED, "data_dims": {"data": [3]}}, r"option 'data_dims': \[3\] must be a dim or"),
    "variable": ({"class": "VariableDataset", "get_dataset": fails}, "get_dataset for epoch 1: " + ZERO),
    "files": ({**FILES, "files": fails, "get_sub_epoch_dataset": dict}, "option 'files': " + ZERO),
    "file_number": ({**FILES, "files": [0], "get_sub_epoch_dataset": dict}, "file 0 cannot be found: expected str"),
    "sub_epoch": ({**FILES, "get_sub_epoch_dataset": fails}, "get_sub_epoch_dataset: " + ZERO),
    "map_dataset": ({"class": "MapDatasetWrapper", "map_dataset": fails}, "option 'map_dataset': " + ZERO),
    "map_seq": ({**MAPPED, "map_seq": fails}, "map_seq, sequence .seq-0.: " + ZERO),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    (folder / "text").write_text("a\n")
    (folder / "symbols").write_text("a\n[END]\n")
    make_zip(folder / "a.zip")
    make_librispeech(folder, use_zip=True)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_one_error_that_names_the_option(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    spec, text = CASES[name]
    with pytest.raises((ConfigError, DataError), match=text) as caught:
        list(Dataset.from_config(spec).sequences(1))
    assert name == "dataset" or str(caught.value).startswith("dataset ")


@pytest.mark.parametrize("lemma", [{"phon": "a"}, {"phons": ["a"]}, {"phons": []}, {"phons": [{"phon": 3}]}])
def test_lemmas_of_configs(lemma, tmp_path):
    lexicon = tmp_path / "lexicon.xml"
    lexicon.write_text(
        "<lexicon><phoneme-inventory><phoneme><symbol>a</symbol></phoneme></phoneme-inventory>"
        "<lemma><orth>[SILENCE]</orth><phon>a</phon></lemma></lexicon>"
    )
    PhoneSequences(PhoneOptions(str(lexicon), extra_end_lemma={"phons": [{"phon": "a a"}]}), "phone_info")
    with pytest.raises(ConfigError, match="phone_info: extra_end_lemma is .*, but must be"):
        PhoneSequences(PhoneOptions(str(lexicon), extra_end_lemma=lemma), "phone_info")
