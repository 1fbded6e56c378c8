"""Indexes that all processes of a machine share: made once, mapped by each, made again when the files change."""

from __future__ import annotations

import os
import threading
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.files import index_file
from returnn_tf.datasets.files.index_file import FOLDER, SharedIndex, shared_index
from returnn_tf.datasets.hdf import file as hdf_file


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Share the index of each corpus, however small it is."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "indexes"))
    monkeypatch.setattr(index_file, "LEAST", 0)
    monkeypatch.setattr(hdf_file, "_MANY_SEQS", 0)
    return tmp_path / "indexes"


class _Maker:
    """Counts how often an index is made."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> SharedIndex:
        self.count += 1
        arrays = {"a.x": np.arange(5, dtype="int32"), "a.y": np.zeros(0), "b": np.array([7], "u1")}
        return SharedIndex(arrays, {"made": self.count})


def _open(path: Path, make: Any, options: Any = None) -> SharedIndex:
    return shared_index("test", [str(path)], options, make)


def _names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".index"))


def test_is_made_once(tmp_path, folder):
    """Other options and other content have other indexes."""
    corpus, make = tmp_path / "corpus", _Maker()
    corpus.write_text("x")
    for _ in range(2):
        index = _open(corpus, make)
        assert index.facts == {"made": 1} and list(index.part("a")) == ["x", "y"]
        assert isinstance(index.arrays["b"], np.memmap) and not index.arrays["a.x"].flags.writeable
        assert [array.tolist() for array in index.arrays.values()] == [[0, 1, 2, 3, 4], [], [7]]
    assert _open(corpus, make, ["other"]).facts == {"made": 2}
    corpus.write_text("longer")
    assert _open(corpus, make).facts == {"made": 3} and len(_names(folder)) == 3


def test_several_processes_wait_for_the_first(tmp_path):
    corpus, make = tmp_path / "corpus", _Maker()
    corpus.write_text("x")
    threads = [threading.Thread(target=_open, args=(corpus, make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert make.count == 1


@pytest.mark.parametrize("content", [b"", b"rtfindex", b"rtfindex" + bytes(90), b"rtfindex\2" + bytes(7) + b"{}"])
def test_damaged_files_are_replaced(tmp_path, folder, caplog, content):
    corpus, make = tmp_path / "corpus", _Maker()
    corpus.write_text("x")
    _open(corpus, make)
    (name,) = _names(folder)
    (folder / name).write_bytes(content)
    assert _open(corpus, make).facts == {"made": 2} and "was damaged, and is removed" in caplog.messages[0]
    assert _open(corpus, make).facts == {"made": 3} and len(caplog.messages) == 1


@pytest.mark.parametrize("fault", ["a file", "writable by others", "changed"])
def test_without_a_place_each_process_has_its_own(tmp_path, folder, caplog, fault):
    corpus, make = tmp_path / "corpus", _Maker()
    corpus.write_text("x")
    if fault == "a file":
        folder.write_text("")
    elif fault == "writable by others":
        folder.mkdir()
        folder.chmod(0o777)

    def changing() -> SharedIndex:
        if fault == "changed":
            corpus.write_text("x" * (make.count + 2))
        return make()

    assert _open(corpus, changing).facts == {"made": 1}
    assert _open(corpus, changing).facts == {"made": 2} or fault == "changed"
    (warning,) = caplog.messages
    assert "%r: " % str(folder) in warning and "this process has its own" in warning


def test_no_folder_is_wanted(tmp_path, folder, monkeypatch):
    monkeypatch.setenv(FOLDER, "")
    corpus, make = tmp_path / "corpus", _Maker()
    corpus.write_text("x")
    assert [_open(corpus, make).facts["made"] for _ in range(2)] == [1, 2] and not folder.exists()


def _write_zip(path: Path, texts: list[str]) -> None:
    entries = [{"text": text, "duration": 1.0 + i, "file": "%d.ogg" % i} for i, text in enumerate(texts)]
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "[%s]" % ",\n".join(map(repr, entries)))
        for entry in entries:
            file.writestr("a/%s" % entry["file"], b"audio of " + entry["text"].encode("utf8", "replace"))


def test_oggzip(tmp_path, folder):
    """A mapped index has all that the first one has: texts, lengths, audio, faults."""
    path = tmp_path / "a.zip"
    texts = ["text %d" % i for i in range(200)] + ["é\ud800", ""]
    _write_zip(path, texts)
    spec = {"class": "OggZipDataset", "path": str(path), "targets": None, "audio": {"features": "raw"}}
    first, other = (Dataset.from_config(spec) for _ in range(2))
    assert first.num_seqs == other.num_seqs == len(texts) and len(_names(folder)) == 1
    for dataset in (first, other):
        assert isinstance(dataset.index._rows, np.memmap)
        assert [dataset.text(i) for i in range(len(texts))] == texts
        assert [dataset.index.audio(i) for i in (0, 199)] == [b"audio of text 0", b"audio of text 199"]
        assert dataset.seq_lengths().tolist() == [100 * (i + 1) for i in range(len(texts))]
        assert dataset.tag(7) == "7.ogg" and dataset.file_of(7) == "%s:a/7.ogg" % path
    _write_zip(path, texts[:3])
    assert Dataset.from_config(spec).num_seqs == 3
    path.unlink()
    with pytest.raises(DataError, match="zip file .* does not exist"):
        Dataset.from_config(spec).num_seqs  # noqa: B018


def test_hdf(tmp_path, folder):
    path = tmp_path / "a.hdf"
    counts = [i % 4 + 1 for i in range(70)]
    with h5py.File(path, "w") as file:
        file["inputs"] = np.repeat(np.arange(70, dtype="float32"), counts)[:, None].repeat(3, axis=1)
        file["seqLengths"] = np.array(counts, "int32")[:, None]
        file["seqTags"] = ["name-%d" % i for i in range(70)]
    first, other = (Dataset.from_config({"class": "HDFDataset", "files": [str(path)]}) for _ in range(2))
    for dataset in (first, other):
        assert [seq.tag for seq in dataset.sequences(1)] == ["name-%d" % i for i in range(70)]
        assert [float(seq.data["data"].sum()) for seq in dataset.sequences(1)] == [
            3.0 * i * (i % 4 + 1) for i in range(70)
        ]
    assert len(_names(folder)) == 2
