"""Corpora in formats of other toolkits, read by the process that loads batches: the same data, and one error each."""

from __future__ import annotations

import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets import BatchLoader, Dataset
from tests.datasets import test_lhotse, test_nemo, test_webdataset
from tests.datasets.utterances import RAW, TEXTS, write_files


def nemo(folder):
    (folder / "m.json").write_text(test_nemo.dump(test_nemo.lines()))
    return {"class": "NeMoDataset", "path": "m.json"}


def kaldi(folder):
    (folder / "wav.scp").write_text("".join("%s wav/%s.wav\n" % (tag, tag) for tag in TEXTS))
    (folder / "text").write_text("".join("%s %s\n" % item for item in TEXTS.items()))
    return {"class": "KaldiDataset", "path": str(folder)}


def lhotse(folder):
    (folder / "cuts.jsonl").write_text(test_lhotse.dump(test_lhotse.lines()))
    return {"class": "LhotseDataset", "path": "cuts.jsonl"}


def web(folder):
    return {"class": "WebDataset", "path": test_webdataset.write(folder / "a.tar", test_webdataset.members())}


def hugging_face(folder):
    package = pytest.importorskip("datasets", reason="its tables are read with the extra 'huggingface'")
    paths = ["wav/%s.wav" % tag for tag in TEXTS]
    package.Dataset.from_dict({"id": list(TEXTS), "data": paths}).save_to_disk("saved")
    return {"class": "HuggingFaceDataset", "dataset_opts": "saved", "data_format": {"data": {"audio": RAW}}}


FORMATS = [nemo, kaldi, lhotse, web, hugging_face]


def dataset_of(make, folder):
    options = make(folder)
    return Dataset.from_config({**options, **({} if "data_format" in options else {"audio": RAW}), "name": "train"})


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "wav")


def tags(batches):
    return [batch.seq_tags[0].removeprefix("wav/").removesuffix(".wav") for batch in batches]


@pytest.mark.parametrize("make", FORMATS)
def test_batches(make, tmp_path):
    limits = {"batch_size": 10000, "max_seqs": 1, "used_data_keys": ["data"]}
    with BatchLoader(dataset_of(make, tmp_path)) as loader:
        assert tags(loader.batches(1, **limits)) == list(TEXTS)
        assert tags(loader.batches(1, start_batch=1, start_seq=1, **limits)) == ["two", "three"]


@pytest.mark.parametrize("make", FORMATS)
def test_errors(make, tmp_path):
    """The second file is damaged after the corpus was made."""
    dataset = dataset_of(make, tmp_path)
    if make is web:
        entries = [(n, b"RIFF" if n == "two.wav" else content) for n, content in test_webdataset.members()]
        test_webdataset.write(tmp_path / "a.tar", entries)
    else:
        (tmp_path / "wav/two.wav").write_bytes(b"RIFF")
    with BatchLoader(dataset) as loader, pytest.raises(DataError) as info:
        list(loader.batches(1, batch_size=10000, used_data_keys=["data"]))
    text = str(info.value)
    assert text.startswith("dataset 'train', sequence ") and "two" in text and text.count("cannot be decoded") == 1
    assert "Traceback" not in text and "\n" not in text
