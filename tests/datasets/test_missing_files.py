"""A file that an option names and that does not exist: one error with dataset and option."""

import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.streams import Streamed

TASK = {"class": "Task12AX", "num_seqs": 3}
META = {
    "class": "MetaDataset",
    "datasets": {"a": TASK, "b": TASK},
    "data_map": {"data": ("a", "data"), "c": ("b", "classes")},
}
GLUED = {"class": "ConcatSeqsDataset", "dataset": TASK}
LM = {"class": "LmDataset", "corpus_file": "lines.txt"}
SYMBOLS = {**LM, "orth_symbols_file": "symbols.txt"}
FILES = {"class": "DistributeFilesDataset", "get_sub_epoch_dataset": lambda files: {}}
WAV = {"class": "RawWavDataset", "frameLength": 9, "frameShift": 9, "num_outputs": 2}
CASES = [
    (TASK, "seq_list_filter_file", "gone"),
    ({"class": Streamed, "num": 3}, "seq_list_filter_file", "gone"),
    ({**TASK, "seq_ordering": "sorted"}, "seq_order_seq_lens_file", "gone"),
    ({**GLUED, "seq_len_file": "lens.txt"}, "seq_list_file", "gone"),
    ({**GLUED, "seq_list_file": "tags.txt"}, "seq_len_file", "gone"),
    (META, "seq_list_file", "gone"),
    (META, "seq_list_file", "gone.pkl"),
    ({**META, "seq_ordering": "sorted"}, "seq_lens_file", "gone"),
    (LM, "orth_symbols_file", "gone"),
    (LM, "orth_symbols_map_file", "gone"),
    (SYMBOLS, "orth_replace_map_file", "gone"),
    (SYMBOLS, "seq_list_file", "gone"),
    ({"class": "BlissDataset", "path": "corpus.xml", "audio": None, "targets": None}, "segment_file", "gone"),
    (FILES, "files", "gone.txt"),
    ({"class": "TextDictDataset", "vocab": {"class": "Utf8ByteTargets"}}, "filename", "gone"),
    ({"class": "StereoHdfDataset"}, "hdfFile", "gone.bundle"),
    (WAV, "listFile", "gone"),
    ({"class": "HDFDataset"}, "files", "gone.hdf"),
    ({"class": "StereoHdfDataset"}, "hdfFile", "gone.hdf"),
    ({"class": "OggZipDataset", "audio": None, "targets": None}, "path", "gone.zip"),
]


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("a b\nc\n")
    (tmp_path / "symbols.txt").write_text("a\nb\nc\n[END]\n[UNKNOWN]\n")
    (tmp_path / "tags.txt").write_text("seq-0;seq-1\n")


@pytest.mark.parametrize("spec, option, path", CASES, ids=["%s %s" % (spec["class"], name) for spec, name, _ in CASES])
def test_error_names_dataset_and_option(spec, option, path):
    with pytest.raises(DataError, match="dataset 'train' .*option '%s': .*file '%s' does not exist" % (option, path)):
        list(Dataset.from_config({**spec, "name": "train", option: path}).sequences(1))


@pytest.mark.parametrize("option", ["vocab_file", "bpe_file", "model_file", "special_symbols_via_file"])
def test_error_names_the_vocabulary(option):
    vocab = {"bpe_file": "codes", "vocab_file": "tags.txt", "unknown_label": None, option: "gone"}
    if option == "model_file":
        pytest.importorskip("sentencepiece")
        vocab = {"class": "SentencePieces", option: "gone"}
    elif option != "bpe_file":
        del vocab["bpe_file"]
    place = "^dataset 'train' .TextDictDataset.: vocab: .*%s.*'gone' does not exist" % option
    with pytest.raises(DataError, match=place):
        Dataset.from_config({"class": "TextDictDataset", "name": "train", "filename": "tags.txt", "vocab": vocab})


def test_error_names_the_archive():
    place = "^dataset 'train' .SprintCacheDataset., key 'data': option 'filename': file 'gone' does not exist"
    with pytest.raises(DataError, match=place):
        Dataset.from_config({"class": "SprintCacheDataset", "name": "train", "data": {"data": {"filename": "gone"}}})


def test_inner_dataset_is_named_once():
    wrong = {**META, "datasets": {"a": TASK, "b": {**TASK, "num_sq": 1}}}
    with pytest.raises(ConfigError) as info:
        Dataset.from_config({**META, "name": "train", "datasets": {"a": wrong, "b": TASK}})
    place = "dataset 'train' (MetaDataset): inner dataset 'train_a' (MetaDataset): inner dataset 'train_a_b' "
    assert str(info.value).startswith(place + "(Task12AXDataset): unknown option 'num_sq'")
