"""A named pipe in place of a file: an error at once, since to open it would wait for ever."""

from __future__ import annotations

import os
import signal

import pytest

from returnn_tf.cli.data.corpus_list import read_corpus
from returnn_tf.config import DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.audio import read_audio
from returnn_tf.datasets.text.bliss import Lexicon
from tests.waiting import LONG

LM = {"class": "LmDataset", "corpus_file": "text", "orth_symbols_file": "text"}
OGG = {"class": "OggZipDataset", "path": "p.zip", "audio": None, "targets": None}
LIBRI = {"class": "LibriSpeechCorpus", "path": ".", "prefix": "train", "audio": None}
BLISS = {"class": "BlissDataset", "path": "p.xml", "vocab_file": "p"}
STEREO = {"class": "StereoHdfDataset"}
WORDS = {"class": "Vocabulary", "vocab_file": "p", "unknown_label": None}
TWO = {
    "class": "MetaDataset",
    "datasets": {"x": {"class": "Task12AX", "num_seqs": 2}},
    "data_map": {"data": ("x", "data")},
}
FILES = {"class": "DistributeFilesDataset", "get_sub_epoch_dataset": dict}

DATASETS = {
    "oggzip": OGG,
    "oggzip_parts": {**OGG, "path": ["p.zip"]},
    "oggzip_text": {**OGG, "path": ["p.txt.gz", "p.zip"]},
    "oggzip_labels": {**OGG, "targets": WORDS},
    "filter": {**OGG, "seq_list_filter_file": "p"},
    "librispeech": {**LIBRI, "use_zip": True},
    "bliss": BLISS,
    "lm": {**LM, "corpus_file": "p"},
    "lm_symbols": {**LM, "orth_symbols_file": "p"},
    "lm_table": {**LM, "orth_symbols_file": None, "orth_symbols_map_file": "p"},
    "lm_labels": {**LM, "orth_symbols_file": None, "orth_vocab": WORDS},
    "lm_tags": {**LM, "seq_list_file": "p"},
    "text_dict": {"class": "TextDictDataset", "filename": "p.py", "vocab": {"class": "Utf8ByteTargets"}},
    "hdf": {"class": "HDFDataset", "files": ["p"]},
    "stereo": {**STEREO, "hdfFile": "p"},
    "stereo_bundle": {**STEREO, "hdfFile": "p.bundle"},
    "meta": {**TWO, "seq_list_file": "p.pkl"},
    "files": {**FILES, "files": "p.txt"},
    "rasr": {"class": "SprintCacheDataset", "data": {"data": {"filename": "p"}}},
}
READERS = {
    "audio": lambda: read_audio("p.wav", name="p.wav"),
    "lexicon": lambda: Lexicon("p.xml"),
    "table": lambda: read_corpus("p.tsv"),
    "bliss": lambda: read_corpus("p.xml"),
}

PIPES = ["p", "p.zip", "p.txt.gz", "p.xml", "p.py", "p.pkl", "p.txt", "p.wav", "p.tsv", "p.bundle"]
PIPES += ["train-%s.zip" % name for name in ("clean-100", "clean-360", "other-500")]


@pytest.fixture(autouse=True)
def _pipes(tmp_path, monkeypatch):
    """Yield pipes in the current directory; a test that waits fails."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a\n")
    for name in PIPES:
        os.mkfifo(name)

    def late(*_):
        raise TimeoutError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(int(LONG))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", DATASETS)
def test_datasets(name):
    with pytest.raises(DataError, match="(is a pipe|is not a file)"):
        list(Dataset.from_config(DATASETS[name]).sequences(1))


@pytest.mark.parametrize("name", READERS)
def test_files(name):
    with pytest.raises(DataError, match="'p[.](wav|xml|tsv)'.* is a pipe"):
        READERS[name]()
