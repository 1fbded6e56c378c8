"""Files of stores and servers by fsspec: memory:// stands for s3:// and the like."""

from __future__ import annotations

import contextlib
import json
import os
import sys

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset, HDFWriter
from returnn_tf.datasets.files import (
    CachedFile,
    copying,
    exists,
    file_size,
    local_copy,
    matching_files,
    path_or_content,
)
from returnn_tf.datasets.processes.process import WorkerProcess
from tests.datasets import test_lhotse, test_webdataset
from tests.datasets.utterances import CHARS, RAW, SAMPLES, TEXTS, check, wav

fsspec = pytest.importorskip("fsspec", reason="remote files are read with the extra 'remote'")
asynchronous = pytest.importorskip("fsspec.asyn", reason="a part of fsspec")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE", str(tmp_path / "cache"))
    copying._copy_of_remote.cache_clear()


@pytest.fixture
def store():
    """Return a function that writes a file of the store, empty before and after."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield lambda url, content: memory.pipe_file(url, content)
    memory.store.clear()


def copies(tmp_path):
    names = os.listdir(tmp_path / "cache/remote") if (tmp_path / "cache/remote").exists() else []
    return [name for name in names if not name.endswith(".cache-lock")]


def test_copies_once_per_version(store, tmp_path, monkeypatch):
    store("memory://bucket/a.bin", b"first")
    first = local_copy("memory://bucket/a.bin", wanted=False)
    with open(first, "rb") as file:
        assert file.read() == b"first"
    memory = fsspec.filesystem("memory")
    with monkeypatch.context() as patched:
        patched.setattr(memory, "info", None)
        assert local_copy("memory://bucket/a.bin", wanted=True) == first  # a process asks once
        copying._copy_of_remote.cache_clear()
        patched.undo()
        patched.setattr(memory, "open", None)
        assert local_copy("memory://bucket/a.bin", wanted=True) == first  # another one finds the copy
    store("memory://bucket/a.bin", b"other")
    copying._copy_of_remote.cache_clear()
    assert local_copy("memory://bucket/a.bin", wanted=False) == first
    with open(first, "rb") as file:
        assert file.read() == b"other"
    store("memory://bucket/sub/a.bin", b"")
    assert local_copy("memory://bucket/sub/a.bin", wanted=False) != first
    assert len(copies(tmp_path)) == 2


def test_small_files_are_not_copied(store, tmp_path):
    store("memory://bucket/a.wav", b"samples")
    assert path_or_content("memory://bucket/a.wav", wanted=False) == b"samples"
    assert copies(tmp_path) == []
    assert path_or_content("memory://bucket/a.wav", wanted=True) == local_copy("memory://bucket/a.wav", wanted=False)
    assert path_or_content("/a.wav", wanted=False) == "/a.wav"


def test_questions(store):
    store("memory://bucket/b.tar", b"12345")
    store("memory://bucket/a.tar", b"")
    assert exists("memory://bucket/b.tar") and not exists("memory://bucket/c.tar")
    assert file_size("memory://bucket/b.tar") == 5
    assert matching_files("memory://bucket/*.tar") == ["memory:///bucket/a.tar", "memory:///bucket/b.tar"]


def test_a_corpus_in_a_store(store, tmp_path):
    lines = [{"audio_filepath": "wav/%s.wav" % tag, "text": text} for tag, text in TEXTS.items()]
    store("memory://bucket/m.json", "".join(json.dumps(line) + "\n" for line in lines).encode())
    for tag, samples in SAMPLES.items():
        store("memory://bucket/wav/%s.wav" % tag, wav(samples))
    options = {"class": "NeMoDataset", "path": "memory://bucket/m.json", "audio": RAW, "targets": CHARS}
    check(Dataset.from_config(options), ["wav/%s.wav" % tag for tag in TEXTS])
    assert len(copies(tmp_path)) == 1
    check(Dataset.from_config({**options, "use_cache_manager": True}), ["wav/%s.wav" % tag for tag in TEXTS])
    assert len(copies(tmp_path)) == 4


_BLISS = """<corpus name="c">
 <recording name="r" audio="%s"><segment name="a" start="0" end="0.1"/><segment name="b" start="0.1"/></recording>
</corpus>"""


@pytest.mark.parametrize("audio", ["wav/one.wav", "memory://bucket/wav/one.wav"])
@pytest.mark.parametrize("wanted, num_copies", [(False, 1), (True, 2)])
def test_a_bliss_corpus_in_a_store(store, tmp_path, audio, wanted, num_copies):
    """Its audio is read where it is, also for the length of a segment without an end, unless copies are wanted."""
    store("memory://bucket/c.xml", (_BLISS % audio).encode())
    store("memory://bucket/wav/one.wav", wav(SAMPLES["one"]))
    options = {"path": "memory://bucket/c.xml", "audio": RAW, "seq_ordering": "sorted", "use_cache_manager": wanted}
    a, b = Dataset.from_config({"class": "BlissDataset", **options}).sequences(1)
    np.testing.assert_array_equal(np.concatenate([a.data["data"], b.data["data"]])[:, 0], SAMPLES["one"])
    assert len(copies(tmp_path)) == num_copies


@pytest.mark.parametrize("remote", [True, False])
def test_files_that_a_bliss_corpus_includes(store, tmp_path, remote):
    """They are copied where the corpus is, and are beside the original, not beside its copy."""
    contents = {"c.xml": '<corpus name="c"><include file="sub/more.xml"/></corpus>', "sub/more.xml": _BLISS % "x"}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        store("memory://bucket/" + name, content.encode())
    path = "memory://bucket/c.xml" if remote else str(tmp_path / "c.xml")
    bliss = {"class": "BlissDataset", "path": path, "audio": None, "use_cache_manager": True}
    lines = {"class": "LmDataset", "corpus_file": path, "use_cache_manager": True, "skip_empty_lines": False}
    for options in (bliss, {**lines, "orth_vocab": {"labels": ["a"], "unknown_label": None}}):
        assert len(list(Dataset.from_config(options).sequences(1))) == 2
    store("memory://bucket/sub/more.xml", b"<corpus>")
    (tmp_path / "sub" / "more.xml").write_text("<corpus>")
    copying._copy_of_remote.cache_clear()
    with pytest.raises(
        DataError, match="Bliss corpus '%s/more.xml' cannot be read" % (path.rpartition("/")[0] + "/sub")
    ):
        list(Dataset.from_config(bliss).sequences(1))


def test_folders_in_a_store(store, tmp_path):
    test_lhotse.write_shard(tmp_path / "shar", 0, ["one", "two"])
    test_lhotse.write_shard(tmp_path / "shar", 1, ["three"])
    test_webdataset.write(tmp_path / "shar" / "a.tar", test_webdataset.members())
    for path in (tmp_path / "shar").iterdir():
        store("memory://bucket/shar/" + path.name, path.read_bytes())
    for tag, samples in SAMPLES.items():
        store("memory://bucket/wav/%s.wav" % tag, wav(samples))
    store("memory://bucket/kaldi/wav.scp", "".join("%s wav/%s.wav\n" % (tag, tag) for tag in TEXTS).encode())
    store("memory://bucket/kaldi/text", "".join("%s %s\n" % item for item in TEXTS.items()).encode())
    for options in (
        {"class": "LhotseDataset", "path": "memory://bucket/shar"},
        {"class": "WebDataset", "path": "memory://bucket/shar/a*.tar"},
    ):
        check(Dataset.from_config({**options, "audio": RAW, "targets": CHARS}))
    kaldi = {"class": "KaldiDataset", "path": "memory://bucket/kaldi", "audio": RAW, "targets": CHARS}
    with pytest.raises(DataError, match="sequence 'one' .*audio file 'wav/one.wav' does not exist"):
        list(Dataset.from_config(kaldi).sequences(1))
    check(Dataset.from_config({**kaldi, "root": "memory://bucket"}))


def test_other_datasets_read_them_too(store, tmp_path):
    with HDFWriter(str(tmp_path / "a.hdf"), dim=2, ndim=2) as writer:
        writer.insert_batch(SAMPLES["one"][None, :8].reshape(1, 4, 2), [4], ["x"])
    store("memory://bucket/a.hdf", (tmp_path / "a.hdf").read_bytes())
    for path in ("memory://bucket/a.hdf", CachedFile("memory://bucket/a.hdf")):
        (seq,) = Dataset.from_config({"class": "HDFDataset", "files": [path]}).sequences(1)
        assert seq.tag == "x" and seq.data["data"].shape == (4, 2)


def nemo(url):
    return Dataset.from_config({"class": "NeMoDataset", "name": "train", "path": url, "audio": RAW})


@pytest.mark.parametrize(
    "url, error, text",
    [
        ("memory://nowhere/m.json", DataError, "file 'memory://nowhere/m.json' does not exist"),
        ("nope://bucket/m.json", ConfigError, "'nope://bucket/m.json' cannot be read: Protocol not known: nope"),
    ],
)
def test_what_is_not_there(store, url, error, text):
    with pytest.raises(error, match="^dataset 'train' .NeMoDataset.: option 'path': " + text):
        list(nemo(url).sequences(1))


def test_a_missing_audio_file(store):
    store("memory://bucket/m.json", b'{"audio_filepath": "gone.wav", "text": "x"}\n')
    text = "sequence 'gone.wav' .*file 'memory://bucket/m.json', line 1: file 'memory://bucket/gone.wav' does not exist"
    with pytest.raises(DataError, match=text):
        list(nemo("memory://bucket/m.json").sequences(1))


@pytest.mark.parametrize("package", ["fsspec", "s3fs"])
def test_a_missing_package(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError, match=r"a?package.* is needed to read 's3://b/m.json'.* Install it: pip install .*"
    ):
        list(nemo("s3://b/m.json").sequences(1))


class _Refusing(fsspec.AbstractFileSystem):
    protocol = "refusing"
    cachable = False

    def info(self, path, **kwargs):
        if "bucket" in path:
            raise FileNotFoundError("The specified bucket does not exist")
        raise ConnectionResetError("connection reset")


@pytest.mark.parametrize(
    "path, text",
    [
        ("bucket/m.json", "file 'refusing://bucket/m.json' does not exist: The specified bucket does not exist"),
        ("host/m.json", "file 'refusing://host/m.json' cannot be read: ConnectionResetError: connection reset"),
    ],
)
def test_what_the_store_says(path, text):
    fsspec.register_implementation("refusing", _Refusing, clobber=True)
    with pytest.raises(DataError, match="option 'path': " + text):
        list(nemo("refusing://" + path).sequences(1))


class _Asynchronous(asynchronous.AsyncFileSystem):
    """Stands for the stores of s3fs, gcsfs and the like: one whose event loop a forked process does not have."""

    protocol = "asynchronous"

    async def _cat_file(self, path, start=None, end=None, **kwargs):
        return path.encode()


def test_a_forked_process_opens_the_store_anew():
    fsspec.register_implementation("asynchronous", _Asynchronous, clobber=True)

    class Reader:  # local, so it can't be sent to a fresh process
        def serve(self, connection):
            connection.send(("content", path_or_content("asynchronous://bucket/a.wav", wanted=False)))

    assert path_or_content("asynchronous://bucket/a.wav", wanted=False) == b"bucket/a.wav"
    with contextlib.closing(WorkerProcess(Reader(), "reader")) as process:
        assert process.receive() == ("content", b"bucket/a.wav")


def test_no_folder_for_copies(store, monkeypatch, tmp_path):
    store("memory://bucket/m.json", b"x")
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE", "")
    with pytest.raises(DataError, match="needs a local copy, but .RETURNN_TF_FILE_CACHE is empty"):
        local_copy("memory://bucket/m.json", wanted=False)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="file 'memory://bucket/m.json' cannot be copied to"):
        local_copy("memory://bucket/m.json", wanted=False)
