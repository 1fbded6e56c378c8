"""All datasets of files in object stores: one in memory, and servers for S3 and Google Cloud Storage on loopback."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets import Dataset, HDFWriter
from returnn_tf.datasets.files import copying, exists, file_size, matching_files, remote
from tests.datasets import test_index_file, test_lhotse, test_nemo, test_webdataset
from tests.datasets.utterances import RAW, SAMPLES, TEXTS, wav, write_files

fsspec = pytest.importorskip("fsspec", reason="remote files are read with the extra 'remote'")

_KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Start a server for S3, and return the address of a bucket."""
    pytest.importorskip("s3fs", reason="reads S3, with the extra 'remote'")
    server = pytest.importorskip("moto.server", reason="is a server for S3").ThreadedMotoServer(port=0)
    server.start()
    patched = pytest.MonkeyPatch()
    host, port = server.get_host_and_port()
    for name, value in {**_KEYS, "AWS_ENDPOINT_URL": "http://%s:%d" % (host, port)}.items():
        patched.setenv(name, value)
    fsspec.filesystem("s3").mkdir("bucket")
    yield "s3://bucket"
    patched.undo()
    server.stop()
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture(scope="module")
def gs() -> Iterator[str]:
    """Start a server for Google Cloud Storage, and return the address of a bucket."""
    pytest.importorskip("gcsfs", reason="reads Google Cloud Storage, with the extra 'remote'")
    package = pytest.importorskip("gcp_storage_emulator.server", reason="is a server for Google Cloud Storage")
    server = package.create_server("localhost", 0, in_memory=True, default_bucket="bucket")
    server.start()
    patched = pytest.MonkeyPatch()
    patched.setenv("STORAGE_EMULATOR_HOST", "http://localhost:%d" % server._api._httpd.server_port)
    yield "gs://bucket"
    patched.undo()
    server.stop()


@pytest.fixture(scope="module")
def memory() -> Iterator[str]:
    """Return the address of a folder of the store in memory."""
    yield "memory:///bucket"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(params=["memory", "s3", "gs"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a folder in a bucket of each kind."""
    monkeypatch.setenv(copying.FOLDER, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "files" / "wav")
    copying._copy_of_remote.cache_clear()
    remote._store_of.cache_clear()
    return "%s/%s" % (request.getfixturevalue(request.param), tmp_path.name)


def nemo(folder: Path, place: str) -> dict[str, Any]:
    (folder / "m.json").write_text(test_nemo.dump(test_nemo.lines()))
    return {"class": "NeMoDataset", "path": place + "/m.json"}


def tarred(folder: Path, place: str) -> dict[str, Any]:
    entries = [{**line, "audio_filepath": Path(line["audio_filepath"]).name} for line in test_nemo.lines()]
    (folder / "t.json").write_text(test_nemo.dump(entries))
    test_nemo.write_shard(folder / "audio_0.tar", {"%s.wav" % tag: wav(SAMPLES[tag]) for tag in TEXTS})
    return {"class": "NeMoDataset", "path": place + "/t.json", "tarred_audio_filepaths": place + "/audio_{0..0}.tar"}


def lhotse(folder: Path, place: str) -> dict[str, Any]:
    test_lhotse.write_shard(folder / "shar", 0, ["one", "two"])
    test_lhotse.write_shard(folder / "shar", 1, ["three"])
    return {"class": "LhotseDataset", "path": place + "/shar"}


def webdataset(folder: Path, place: str) -> dict[str, Any]:
    test_webdataset.write(folder / "a.tar", test_webdataset.members())
    return {"class": "WebDataset", "path": place + "/a*.tar", "arrays": {"more": "feat.npy"}}


def kaldi(folder: Path, place: str) -> dict[str, Any]:
    (folder / "kaldi").mkdir()
    (folder / "kaldi" / "wav.scp").write_text("".join("%s wav/%s.wav\n" % (tag, tag) for tag in TEXTS))
    (folder / "kaldi" / "text").write_text("".join("%s %s\n" % item for item in TEXTS.items()))
    return {"class": "KaldiDataset", "path": place + "/kaldi", "root": place}


def bliss(folder: Path, place: str) -> dict[str, Any]:
    segment = '<segment name="a" start="0.1"><orth>x</orth></segment>'
    recording = '<recording name="r" audio="wav/one.wav">%s</recording>' % segment
    (folder / "c.xml").write_text('<corpus name="c">%s</corpus>' % recording)
    return {"class": "BlissDataset", "path": place + "/c.xml", "seq_ordering": "sorted"}


def oggzip(folder: Path, place: str) -> dict[str, Any]:
    test_index_file._write_zip(folder / "a.zip", ["a", "b c"])
    return {"class": "OggZipDataset", "path": place + "/a.zip", "audio": None, "targets": None}


def hdf(folder: Path, place: str) -> dict[str, Any]:
    with HDFWriter(str(folder / "a.hdf"), dim=1, ndim=2) as writer:
        writer.insert_batch(np.arange(6, dtype="float32").reshape(2, 3, 1), [3, 2], ["x", "y"])
    return {"class": "HDFDataset", "files": [place + "/a.hdf"]}


def lines(folder: Path, place: str) -> dict[str, Any]:
    (folder / "text").write_text("a b\nc\n")
    vocab = {"labels": ["a", "b", "c"], "unknown_label": None}
    return {"class": "LmDataset", "corpus_file": place + "/text", "orth_vocab": vocab}


def parallel(folder: Path, place: str) -> dict[str, Any]:
    (folder / "mt").mkdir()
    for side in ("source", "target"):
        (folder / "mt" / (side + ".x")).write_text("a b\nb\n")
        (folder / "mt" / (side + ".vocab.pkl")).write_bytes(pickle.dumps({"a": 0, "b": 1}))
    return {"class": "TranslationDataset", "path": place + "/mt", "file_postfix": "x", "unknown_label": None}


def table(folder: Path, place: str) -> dict[str, Any]:
    package = pytest.importorskip("datasets", reason="reads tables, with the extra 'huggingface'")
    rows = {"id": ["x", "y"], "audio": ["%s/wav/%s.wav" % (place, tag) for tag in ("one", "two")], "text": ["a", "b"]}
    package.Dataset.from_dict(rows).to_parquet(str(folder / "a.parquet"))
    formats = {"audio": {"audio": RAW}, "text": {"dtype": "string", "shape": ()}}
    return {"class": "HuggingFaceDataset", "dataset_opts": place + "/a.parquet", "data_format": formats}


CORPORA = [nemo, tarred, lhotse, webdataset, kaldi, bliss, oggzip, hdf, lines, parallel, table]


def content(spec: dict[str, Any]) -> list[Any]:
    """Return all sequences; with audio where nothing else is said."""
    takes_audio = spec["class"] in {"NeMoDataset", "LhotseDataset", "WebDataset", "KaldiDataset", "BlissDataset"}
    dataset = Dataset.from_config({**({"audio": RAW} if takes_audio else {}), **spec})
    return [(seq.tag, {key: np.asarray(v).tolist() for key, v in seq.data.items()}) for seq in dataset.sequences(1)]


@pytest.mark.parametrize("make", CORPORA, ids=lambda make: make.__name__)
def test_same_as_on_the_disk(bucket: str, tmp_path: Path, make: Callable[[Path, str], dict[str, Any]]) -> None:
    local = content(make(tmp_path / "files", str(tmp_path / "files")))
    write_files(tmp_path / "other" / "wav")
    spec = make(tmp_path / "other", bucket)
    fsspec.filesystem(bucket.split(":")[0]).put(str(tmp_path / "other") + "/", bucket, recursive=True)
    assert content(spec) == local and local


def test_questions(bucket: str, tmp_path: Path) -> None:
    store = fsspec.filesystem(bucket.split(":")[0])
    store.makedirs(bucket, exist_ok=True)
    store.pipe_file(bucket + "/b.tar", b"12345")
    store.pipe_file(bucket + "/a.tar", b"")
    assert exists(bucket + "/b.tar") and not exists(bucket + "/c.tar") and file_size(bucket + "/b.tar") == 5
    assert matching_files(bucket + "/*.tar") == [bucket + "/a.tar", bucket + "/b.tar"]


def test_another_version_is_copied_again(bucket: str, tmp_path: Path) -> None:
    store = fsspec.filesystem(bucket.split(":")[0])
    for text in (b"first", b"other"):
        store.pipe_file(bucket + "/text", text)
        store.invalidate_cache()
        copying._copy_of_remote.cache_clear()
        with open(copying.local_copy(bucket + "/text", wanted=False), "rb") as file:
            assert file.read() == text


@pytest.mark.parametrize(
    "path, text",
    [
        ("/gone.json", "file '.*/gone.json' does not exist"),
        ("-gone/m.json", "file '.*-gone/m.json' (does not exist|cannot be read)"),
    ],
)
def test_what_is_not_there(bucket: str, path: str, text: str) -> None:
    with pytest.raises(DataError, match="^dataset 'train' .NeMoDataset.: option 'path': " + text):
        content({"class": "NeMoDataset", "name": "train", "path": os.path.dirname(bucket) + path})
