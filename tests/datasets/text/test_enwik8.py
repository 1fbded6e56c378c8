"""Enwik8Corpus with a small text in its place."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.text import enwik8

TEXT = bytes(range(100))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(enwik8, "_SIZE", 100)
    monkeypatch.setattr(enwik8, "_PARTS", {"training": (0, 90), "validation": (90, 95), "test": (95, 100)})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("part, begin, end", [("training", 0, 90), ("test", 95, 100)])
@pytest.mark.parametrize("size", [1, 3, 4, 89, 500])
def test_windows(tmp_path, packed, part, begin, end, size):
    """Each byte but the last one is in a window once, and its target is the next one."""
    if packed:
        with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
            archive.writestr("enwik8", TEXT)
    else:
        (tmp_path / "enwik8").write_bytes(TEXT)
    options = {"class": "Enwik8Corpus", "path": str(tmp_path), "subset": part, "seq_len": size}
    seqs = list(Dataset.from_config(options).sequences(1))
    assert all(len(seq.data["data"]) == size for seq in seqs[:-1]) and 1 <= len(seqs[-1].data["data"]) <= size
    assert np.concatenate([seq.data["data"] for seq in seqs]).tobytes() == TEXT[begin : end - 1]
    assert np.concatenate([seq.data["classes"] for seq in seqs]).tobytes() == TEXT[begin + 1 : end]
    last = next(Dataset.from_config({**options, "seq_ordering": "sorted"}).sequences(1)).tag
    assert last == (seqs[-1].tag if len(seqs[-1].data["data"]) < size else "seq-0")


def test_bad_files(tmp_path):
    options = {"class": "Enwik8Corpus", "path": str(tmp_path), "subset": "test", "seq_len": 3}
    with pytest.raises(ConfigError, match="neither 'enwik8' nor 'enwik8.zip'.*nothing is downloaded"):
        Dataset.from_config(options)
    for content, text in ((b"", "can't be read"), (TEXT, "can't be read")):
        (tmp_path / "enwik8.zip").write_bytes(content)
        with pytest.raises(DataError, match=text):
            Dataset.from_config(options)
    for content, text in ((TEXT[1:], "has 99 bytes, not 100"), (TEXT * 2, "has more than 100 bytes")):
        (tmp_path / "enwik8").write_bytes(content)
        with pytest.raises(DataError, match=text):
            Dataset.from_config(options)
    with pytest.raises(ConfigError, match="subset"):
        Dataset.from_config({**options, "subset": "train"})
