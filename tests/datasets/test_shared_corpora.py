"""Indexes of corpora that all processes share: each kind, opened again, changed, and changed in an included file."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets import Dataset, HDFWriter
from returnn_tf.datasets.core.tags import TagTable
from returnn_tf.datasets.files import index_file
from returnn_tf.datasets.text.json_lines import JsonLines, JsonTable
from tests.datasets import test_lhotse, test_librispeech, test_nemo, test_webdataset
from tests.datasets.utterances import CHARS, RAW, SAMPLES, TEXTS, wav, write_files

_BLISS = '<corpus name="c"><include file="more.xml"/></corpus>'
_INCLUDED = """<corpus name="more"><recording name="r" audio="wav/two.wav">
<segment name="a" start="0.1" end="0.3" track="0"><orth> a  b </orth></segment>
<segment name="b"><orth>%s</orth></segment>
</recording></corpus>"""


@pytest.fixture(autouse=True)
def written(tmp_path, monkeypatch) -> list[str]:
    """Share the index of each corpus, however small; return the files of those that are made."""
    monkeypatch.setenv(index_file.FOLDER, str(tmp_path / "indexes"))
    monkeypatch.setattr(index_file, "LEAST", 0)
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    write = index_file._write
    monkeypatch.setattr(
        index_file, "_write", lambda path, *rest: found.append(Path(path).name.split(".")[0]) or write(path, *rest)
    )
    write_files(tmp_path / "wav")
    return found


def nemo(folder: Path) -> dict[str, Any]:
    (folder / "m.json").write_text(test_nemo.dump(test_nemo.lines()))
    return {"class": "NeMoDataset", "path": "m.json"}


def packed_nemo(folder: Path) -> dict[str, Any]:
    (folder / "m.json.gz").write_bytes(gzip.compress(test_nemo.dump(test_nemo.lines()).encode()))
    return {"class": "NeMoDataset", "path": "m.json.gz"}


def tarred_nemo(folder: Path) -> dict[str, Any]:
    lines = [{**line, "audio_filepath": Path(line["audio_filepath"]).name} for line in test_nemo.lines()]
    (folder / "m.json").write_text(test_nemo.dump(lines))
    test_nemo.write_shard(folder / "audio_0.tar", {"%s.wav" % tag: wav(SAMPLES[tag]) for tag in TEXTS})
    return {"class": "NeMoDataset", "path": "m.json", "tarred_audio_filepaths": "audio_{0..0}.tar"}


def kaldi(folder: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "wav.scp").write_text("".join("%s wav/%s.wav\n" % (tag, tag) for tag in TEXTS))
        (folder / name / "segments").write_text("%s-1 three 0.1 0.3 0\n%s-2 one 0.25 -1\n" % (name, name))
        (folder / name / "text").write_text("%s-2 x y\n%s-1 z\n" % (name, name))
        (folder / name / "utt2dur").write_text("%s-1 3\n%s-2 2\n" % (name, name))
    return {"class": "KaldiDataset", "path": ["a", "b"]}


def lhotse(folder: Path) -> dict[str, Any]:
    (folder / "cuts.jsonl").write_text(test_lhotse.dump(test_lhotse.lines()))
    return {"class": "LhotseDataset", "path": "cuts.jsonl"}


def shar(folder: Path) -> dict[str, Any]:
    test_lhotse.write_shard(folder / "shar", 0, ["one", "two"])
    test_lhotse.write_shard(folder / "shar", 1, ["three"])
    return {"class": "LhotseDataset", "path": "shar"}


def webdataset(folder: Path) -> dict[str, Any]:
    test_webdataset.write(folder / "a.tar", test_webdataset.members())
    return {"class": "WebDataset", "path": "a.tar", "arrays": {"more": "feat.npy"}}


def bliss(folder: Path) -> dict[str, Any]:
    (folder / "c.xml").write_text(_BLISS)
    (folder / "more.xml").write_text(_INCLUDED % "c")
    return {"class": "BlissDataset", "path": "c.xml"}


def librispeech(folder: Path) -> dict[str, Any]:
    test_librispeech.make(folder, use_zip=True)
    return {"class": "LibriSpeechCorpus", "path": str(folder), "prefix": "train", "use_zip": True}


def librispeech_folders(folder: Path) -> dict[str, Any]:
    return {**librispeech(folder), "path": test_librispeech.make(folder, use_zip=False), "use_zip": False}


def lines(folder: Path) -> dict[str, Any]:
    (folder / "text.gz").write_bytes(gzip.compress(b"a b\n\nc\n"))
    vocab = {"labels": ["a", "b", "c"], "unknown_label": None}
    return {"class": "LmDataset", "corpus_file": "text.gz", "orth_vocab": vocab, "audio": None, "targets": None}


#: Makes a corpus -> the kinds of its indexes.
CORPORA = {
    nemo: ["json-lines", "nemo"],
    packed_nemo: ["json-lines", "nemo"],
    tarred_nemo: ["json-lines", "nemo"],
    kaldi: ["kaldi", "kaldi", "kaldi-names", "kaldi-numbers", "kaldi-numbers", *["lines"] * 8],
    lhotse: ["lhotse"],
    shar: ["lhotse"],
    webdataset: ["webdataset"],
    bliss: ["bliss"],
    librispeech: ["librispeech"],
    librispeech_folders: ["librispeech"],
    lines: ["lines"],
}


def opened(spec: dict[str, Any]) -> Dataset:
    given = {} if spec["class"] == "LmDataset" else {"audio": RAW, "targets": CHARS, "seq_ordering": "sorted_reverse"}
    if spec["class"] == "LibriSpeechCorpus":
        given["audio"] = {"features": "log_mel_filterbank", "num_feature_filters": 5}
    spec = {name: value for name, value in {**given, **spec}.items() if value is not None}
    return Dataset.from_config({**spec, "name": "train"})


def content(spec: dict[str, Any]) -> list[Any]:
    return [(seq.tag, {key: np.asarray(v).tolist() for key, v in seq.data.items()}) for seq in opened(spec).sequences()]


@pytest.mark.parametrize("make", CORPORA, ids=lambda make: make.__name__)
def test_the_second_process_maps_what_the_first_has_made(make, tmp_path, written, monkeypatch):
    spec = make(tmp_path)
    with monkeypatch.context() as patched:
        patched.setenv(index_file.FOLDER, "")
        own = content(spec)
    assert not written and len(own) > 1
    first = content(spec)
    assert sorted(name.rpartition("-")[0] for name in written) == CORPORA[make]
    made = list(written)
    assert content(spec) == first == own and written == made


@pytest.mark.parametrize("packed", [False, True])
def test_more_manifests_than_files_may_be_open(tmp_path, written, packed):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    line = test_nemo.lines()[0]
    for number in range(100):
        text = test_nemo.dump([{**line, "audio_filepath": "../wav/one.wav", "id": "%d" % number}]).encode()
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / ("%d.json" % number)).write_bytes(gzip.compress(text) if packed else text)
    used = len(os.listdir("/proc/self/fd"))
    spec = {"class": "NeMoDataset", "path": ["m/{0..99}.json"], "tag_field": "id"}
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 60, hard))
        for _ in range(2):
            assert sorted(int(tag) for tag, _ in content(spec)) == list(range(100))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(written) == 2


def test_a_change_is_seen(tmp_path, written):
    spec = nemo(tmp_path)
    assert len(content(spec)) == 3
    (tmp_path / "m.json").write_text(test_nemo.dump(test_nemo.lines()[:2]))
    assert len(content(spec)) == 2


def test_a_change_of_an_included_file_is_seen(tmp_path, written):
    """Which files a corpus includes is known only once it has been read."""
    spec = bliss(tmp_path)
    text = [data["raw"] for _, data in content(spec)]
    for number in range(2):
        (tmp_path / "more.xml").write_text(_INCLUDED % ("other" + "x" * number))
        assert [data["raw"] for _, data in content(spec)] == ["other" + "x" * number, text[1]]
    (tmp_path / "more.xml").unlink()
    with pytest.raises(DataError, match="more.xml' cannot be read: No such file"):
        content(spec)
    assert len(written) == 3


def test_what_is_wrong_is_not_kept(tmp_path, written):
    (tmp_path / "m.json").write_text(test_nemo.dump(test_nemo.lines() * 2))
    for _ in range(2):
        with pytest.raises(DataError, match="m.json', line 4: the tag 'wav/one.wav' is that of file 'm.json', line 1"):
            content({"class": "NeMoDataset", "path": "m.json"})
    assert [name.rpartition("-")[0] for name in written] == ["json-lines"]


def _hdf(path: str, tags: list[str]) -> dict[str, Any]:
    with HDFWriter(path, dim=1, ndim=2) as writer:
        for tag in tags:
            writer.insert_batch(np.full((1, 3, 1), int(tag), "float32"), [3], [tag])
    return {"class": "HDFDataset", "files": [path]}


@pytest.mark.parametrize("control", [None, "a"])
def test_sequences_of_joined_datasets_are_found_once(tmp_path, written, monkeypatch, control):
    """Later epochs and processes do not compare names; a dataset that lacks some does, and names them."""
    tags = [str(n) for n in np.random.RandomState(1).permutation(50)]
    inner = {"a": _hdf("a.hdf", tags), "b": _hdf("b.hdf", [*sorted(tags), "99"])}
    data_map = {"data": ("a", "data"), "more": ("b", "data")}
    spec = {"class": "MetaDataset", "datasets": inner, "data_map": data_map, "seq_order_control_dataset": control}
    (inner["a"] if control else spec)["seq_ordering"] = "random"

    def check(dataset: Dataset, epoch: int) -> None:
        found = list(dataset.sequences(epoch))
        assert sorted(seq.tag for seq in found) == sorted(tags)
        assert all(float(seq.tag) == seq.data["data"][0, 0] == seq.data["more"][0, 0] for seq in found)

    dataset = Dataset.from_config(spec)
    check(dataset, 1)
    assert [name.rpartition("-")[0] for name in written] == ["places"]
    with monkeypatch.context() as patched:
        patched.setattr(TagTable, "find", None)
        check(dataset, 2)
        check(Dataset.from_config(spec), 3)
    inner["b"] = _hdf("c.hdf", [*map(str, range(1, 51))])
    with pytest.raises(DataError, match="dataset 'train_b' .HDFDataset. has no sequence '0'"):
        list(Dataset.from_config({**spec, "name": "train"}).sequences(1))


_VALUES = ["1", "0.5", "-2e3", "true", "null", '"a b"', '"\\u00e9\\n"', '"\\ud83d\\ude00"', "[1]", "{}", '"é"', " 7 "]


def _line(rng: random.Random, keys: list[str]) -> str:
    blank = rng.choice(["", " ", "\t"])
    values = {"tag": '"%s"' % rng.choice("abcé"), "seconds": rng.choice(["1", "2.5", "3e-1", "0"])}
    items = ('"%s"%s:%s%s' % (key, blank, blank, values.get(key) or rng.choice(_VALUES)) for key in keys)
    return "{%s%s}%s" % (blank, ", ".join(items), rng.choice(["", "", "\r", " "]))


@pytest.mark.parametrize("seed", range(20))
def test_lines_written_alike(tmp_path, monkeypatch, seed):
    """Tables of several lines have what each line has, whatever else there is in the lines and between them."""
    monkeypatch.setattr("returnn_tf.datasets.text.json_lines._LINES_AT_ONCE", 4)
    rng = random.Random(seed)
    keys = rng.sample(["tag", "seconds", "text", "é", "x.y"], rng.randint(2, 5))
    texts = [_line(rng, keys if rng.random() < 0.9 else keys[:1] + ["other"]) for _ in range(40)]
    texts = [text if rng.random() < 0.95 else rng.choice(["", "  "]) for text in texts]
    (tmp_path / "m.json").write_text("\n".join(texts), newline="")
    lines = JsonLines(["m.json"], use_cache_manager=False)
    kinds = {"tag": str, "seconds": float}
    found: list[tuple[int, dict[str, Any]]] = []
    for number, some in lines.tables(kinds):
        rows = list(some.rows()) if isinstance(some, JsonTable) else [some]
        assert not isinstance(some, JsonTable) or some.count == len(rows) > 1
        found += [(number + row, {k: v for k, v in entry.items() if k in kinds}) for row, entry in enumerate(rows)]
    expected = [(number, json.loads(text)) for number, text in enumerate(filter(None, texts)) if text.strip()]
    assert found == [(number, {k: v for k, v in entry.items() if k in kinds}) for number, entry in expected]
