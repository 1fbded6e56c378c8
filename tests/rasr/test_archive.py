"""Archives of RASR: recorded ones, damaged ones, and what is written is read again."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.rasr.datasets.allophones import AllophoneLabeling
from returnn_tf.rasr.datasets.archive import END, START, Archive, full_name, open_archive
from returnn_tf.rasr.datasets.entries import (
    STATE_FACTOR,
    Features,
    decode_alignment,
    decode_features,
)
from tests.datasets.recorded import assert_same_sequences, by_name
from tests.rasr.archives import ArchiveWriter, encode_alignment, encode_features

ROOT = Path(__file__).parents[1] / "data" / "rasr" / "cache"
RECORDED = json.loads((ROOT / "rasr_cache.json").read_text(encoding="utf8"))
CASES = by_name(RECORDED["cases"])
#: recorded oddities which are not followed -> what is right
QUIRKS = {
    "weights_time_jump": [[0, 0, 0, 1], [4, 1, 0, 0.5], [4, 2, 0, 0.5], [5, 2, 0, 1]],  # one item less
    "emission_ids": [[0, 5, 0, 1], [1, 6, 0, 1]],  # a legal form
    "sorted_bundle": "an order by length is possible for bundles, too",
    "feat_align_state_tying": "its classes are a target",
}


def test_recorded_archives():
    complete = RECORDED["archives"]["feat.cache"]
    for file, expected in RECORDED["archives"].items():
        archive = open_archive(str(ROOT / file))
        if file == "feat_notable.cache":  # quirk: entries are missed there
            expected = complete
        assert sorted(archive.entries) == sorted(expected["file_list"]), file
        for name, entry in expected["entries"].items():
            _check_entry("%s, %s" % (file, name), archive.read(name), QUIRKS.get(name, entry["value"]), entry["type"])
        for name in expected["short_name"]:
            assert full_name(archive, name.rsplit("/", 1)[-1]) == name


def _check_entry(place, content, value, kind):
    if isinstance(value, dict) and "exception" in value:
        with pytest.raises(DataError, match="unknown form"):
            decode_alignment(content, place)
    elif kind == "str":
        assert content.decode() == value
    elif kind == "feat":
        features = decode_features(content, place)
        np.testing.assert_array_equal(features.vectors, np.asarray(value["data"], np.float32))
        np.testing.assert_array_equal(features.times, value["times"])
    else:
        got = decode_alignment(content, place)
        items = np.stack([got.times, got.allophones, got.states, got.weights], axis=1)
        np.testing.assert_allclose(items, np.reshape(value or [], (-1, 4)), atol=1e-7, err_msg=place)


@pytest.mark.parametrize("kind", RECORDED["labeling"])
def test_recorded_labeling(kind):
    file = {"phones": {"phoneme_file": "phones.txt"}, "state_tying": {"state_tying_file": "state-tying.txt"}}[kind]
    options = {"silence_phone": "si", "allophone_file": "allophones.txt", **file}
    options = {name: str(ROOT / value) if name.endswith("_file") else value for name, value in options.items()}
    labeling = AllophoneLabeling(options, owner="test")
    expected = RECORDED["labeling"][kind]
    assert (labeling.num_labels, labeling.silence_class) == (expected["num_labels"], expected["sil_label_idx"])
    for label, index in expected["by_index"].items():
        if index is None:
            with pytest.raises(DataError, match="lacks"):
                labeling.class_of(int(label))
        else:
            assert labeling.class_of(int(label)) == index


@pytest.mark.parametrize("name", CASES)
def test_recorded_datasets(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    case = CASES[name]
    if "exception" in case and name not in QUIRKS:
        with pytest.raises((ConfigError, DataError)):
            Dataset.from_config(case["options"])
        return
    dataset = Dataset.from_config(case["options"])
    facts = case["dataset"]
    assert dataset.num_outputs == {key: tuple(value) for key, value in facts["num_outputs"].items()}
    if "data_keys" in facts:
        assert dataset.data_keys == facts["data_keys"]
        assert [dataset.tag(i) for i in range(dataset.num_seqs)] == facts["all_tags"]
        targets = ["classes"] if name in QUIRKS else facts["target_list"]
        assert dataset.target_list == targets
    for key, spec in facts.get("per_key", {}).items():
        got = dataset.data_specs[key]
        assert (got.sparse, got.dim, list(got.shape)) == (spec["sparse"], spec["dim"], spec["shape"])
    for epoch, sequences in case.get("epochs", {}).items():
        assert_same_sequences(dataset.sequences(int(epoch)), sequences)
    for run in case.get("runs", []):  # fails in RETURNN, but archives are read by name
        assert [seq.tag for seq in dataset.sequences(**run["args"])] == run["args"]["seq_list"]
    if name == "sorted_bundle":
        assert [len(seq.data["data"]) for seq in dataset.sequences()] == [2, 2, 3, 4]


def test_sequences_by_name_and_number(monkeypatch):
    monkeypatch.chdir(ROOT)
    dataset = Dataset.from_config({"class": "SprintCacheDataset", "data": {"data": "feat.cache"}})
    every = {seq.tag: seq.data["data"] for seq in dataset.sequences()}
    tags = list(every)
    for chosen in ({"seq_list": [tags[2], tags[0], tags[2]]}, {"seq_order": [2, 0, 2]}):
        seqs = list(dataset.sequences(**chosen))
        assert [seq.tag for seq in seqs] == [tags[2], tags[0], tags[2]]
        for seq in seqs:
            np.testing.assert_array_equal(seq.data["data"], every[seq.tag])
    with pytest.raises(DataError, match="has no sequence 'corp/rec'. Did you mean"):
        list(dataset.sequences(seq_list=["corp/rec"]))


@pytest.mark.parametrize("name", [name for name in CASES if "exception" not in CASES[name]])
def test_archives_are_shown_and_converted(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    config = str({**CASES[name]["options"], "seq_ordering": "default"})
    dataset = Dataset.from_config(CASES[name]["options"])
    assert main(["data", "info", config]) == 0
    assert "%d sequences" % dataset.num_seqs in capsys.readouterr().out
    tag = dataset.tag(dataset.num_seqs - 1)
    assert main(["data", "dump", config, "--tags", tag]) == 0
    assert capsys.readouterr().out.startswith(tag)
    assert main(["data", "to-hdf", config, "--output", str(tmp_path / "x.hdf"), "--processes", "2"]) == 0
    copy = Dataset.from_config({"class": "HDFDataset", "files": [str(tmp_path / "x.hdf")]})
    for got, expected in zip(copy.sequences(), dataset.sequences(seq_order=range(dataset.num_seqs))):
        assert got.tag == expected.tag and got.data.keys() == expected.data.keys()
        for key, value in expected.data.items():
            np.testing.assert_array_equal(got.data[key], value)
    assert copy.num_seqs == dataset.num_seqs


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_written_is_read_again(tmp_path, compress):
    rng = np.random.RandomState(1)
    labels = np.repeat(rng.randint(0, 50, size=40), rng.randint(1, 300, size=40)).astype("uint32")
    labels[::7] += 2 * STATE_FACTOR
    features = Features(rng.normal(size=(5, 3)).astype("float32"), rng.normal(size=(5, 2)))
    empty = Features(np.zeros((0, 0), np.float32), np.zeros((0, 2)))
    path = str(tmp_path / "new.cache")
    with ArchiveWriter(path, compress=compress) as writer:
        writer.add("a/äöü", encode_features(features))
        writer.add("a/align", encode_alignment(labels))
        writer.add("a/empty", encode_features(empty))
    archive = Archive(path)
    got = decode_features(archive.read("a/äöü"), "")
    np.testing.assert_array_equal(got.vectors, features.vectors)
    np.testing.assert_array_equal(got.times, features.times)
    alignment = decode_alignment(archive.read("a/align"), "")
    np.testing.assert_array_equal(alignment.labels, labels)
    assert (alignment.times == np.arange(len(labels))).all() and (alignment.weights == 1).all()
    assert decode_features(archive.read("a/empty"), "").vectors.shape == (0, 0)
    content = Path(path).read_bytes()
    cut = tmp_path / "cut.cache"
    cut.write_bytes(content[:8] + b"\0" + b"garbage" + content[9 : content.rindex(START) + 20])  # broken off
    assert list(Archive(str(cut)).entries) == ["a/äöü", "a/align"]


def test_removed_entries_and_gzip_are_read(tmp_path):
    """Found by the scan, too, whatever a removed entry contains."""
    packed = gzip.compress(b"content")
    entry = START + struct.pack("<I", 1) + b"x" + struct.pack("<III", 7, len(packed), 0) + packed + END
    removed = START + struct.pack("<IIII", 0, len(entry), 0, 0) + entry.replace(b"x", b"y") + END
    path = tmp_path / "a.cache"
    path.write_bytes(b"SP_ARC1\0\0" + removed + b"123" + entry)
    archive = Archive(str(path))
    assert list(archive.entries) == ["x"] and archive.read("x") == b"content"


def _table(start, *entries):
    names = b"".join(struct.pack("<I", len(n)) + n + struct.pack("<QII", *rest) for n, *rest in entries)
    return struct.pack("<I", len(entries)) + names + struct.pack("<IQQ", 0, 0, start)


@pytest.mark.parametrize(
    "content, text",
    [
        (b"", "empty|no archive"),
        (b"SP_ARC1\0", "no archive"),
        (b"\x1f\x8b" + bytes(30), "no archive"),
        (b"SP_ARC1\0\1", "damaged"),
        (b"SP_ARC1\0\1" + b"\xff" * 40, "damaged"),
        (b"SP_ARC1\0\1" + _table(9, (b"x", 12, 2**32 - 1, 0)), "beyond the data"),
        (b"SP_ARC1\0\1" + _table(9, (b"\xff", 0, 0, 0)), "can't be read"),
        (b"SP_ARC1\0\1" + struct.pack("<IQ", 2**32 - 1, 9), "can't be read"),
    ],
)
def test_damaged_archives(tmp_path, content, text):
    path = tmp_path / "bad.cache"
    path.write_bytes(content)
    with pytest.raises(DataError, match=text) as error:
        Archive(str(path))
    assert str(path) in str(error.value)


def test_missing_archives_and_entries(tmp_path):
    with pytest.raises(DataError, match="none.cache' does not exist"):
        Archive(str(tmp_path / "none.cache"))
    with pytest.raises(DataError, match="no entry 'corp/rec0/9'. Did you mean 'corp/rec0/"):
        Archive(str(ROOT / "feat.cache")).read("corp/rec0/9")
    bundle = tmp_path / "x.bundle"
    bundle.write_text("\n%s\n\n" % (ROOT / "feat_a.cache"))
    with pytest.raises(DataError, match="bundle .* no entry"):
        open_archive(str(bundle)).read("corp/rec9/9")


@pytest.mark.parametrize("name", [name for name in Archive(str(ROOT / "special.cache")).entries if name != "text"])
def test_damaged_entries(name):
    """Cut after any byte or with any byte changed: an alignment or one error, and it ends."""
    content = Archive(str(ROOT / "special.cache")).read(name)
    for position in range(len(content)):
        for damaged in (content[:position], content[:position] + b"\xff" + content[position + 1 :]):
            try:
                alignment = decode_alignment(damaged, "place")
            except DataError as exc:
                assert str(exc).startswith("place: ")
            else:
                assert len(alignment.labels) == len(alignment.times) == len(alignment.weights)


def test_damaged_features():
    content = Archive(str(ROOT / "feat.cache")).read("corp/rec0/1")
    for position in range(1, len(content)):
        with pytest.raises(DataError, match="^place: "):
            decode_features(content[:position], "place")
    with pytest.raises(DataError, match="holds no features"):
        decode_features(Archive(str(ROOT / "align.cache")).read("corp/rec0/1"), "place")


LABELS = {"silence_phone": "si", "allophone_file": "allophones.txt", "state_tying_file": "state-tying.txt"}


def _aligned(**options):
    return {"data": "feat.cache", "x": {"filename": "align.cache", "allophone_labeling": {**LABELS, **options}}}


@pytest.mark.parametrize(
    "data, text",
    [
        ({}, "lacks 'data'"),
        ({"data": {"filename": "feat.cache", "data_type": "features"}}, "data_type"),
        ({"data": {"file": "feat.cache"}}, "Did you mean 'filename'"),
        ({"data": {"filename": "align.cache"}}, "holds no features"),
        ({"data": "feat.cache", "x": "align.cache"}, "holds no features"),
        ({"data": "feat.cache", "classes": "align.cache"}, "needs allophone_labeling"),
        ({"data": "feat.cache", "classes": {"filename": "align.cache", "allophone_labeling": {}}}, "silence_phone"),
        (_aligned(silence_phone="s"), "lack 's"),
        (_aligned(state_tying_file=None), "needs state_tying_file"),
        (_aligned(state_tying_file="phones.txt"), "line 1"),
        (_aligned(state_tying_file=None, phoneme_file="allophones.txt"), "lacks the phone 'si'"),
        (_aligned(allophone_file="nothing.txt"), "does not exist"),
        ({"data": "feat.cache", "x": "feat_a.cache"}, "same names"),
    ],
)
def test_mistakes_in_options(data, text, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises((ConfigError, DataError), match=text):
        list(Dataset.from_config({"class": "SprintCacheDataset", "data": data}).sequences())


@pytest.mark.parametrize("name, text", [("weights_v2", "weights"), ("time_jump", "one item for each")])
def test_alignments_which_are_no_targets(name, text, monkeypatch):
    monkeypatch.chdir(ROOT)
    alignment = decode_alignment(Archive("special.cache").read(name), "place")
    with pytest.raises(DataError, match=text):
        AllophoneLabeling(LABELS, owner="x").classes(alignment, "place")


def test_names_in_the_archive_are_compared(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    alignment = decode_alignment(Archive("special.cache").read("alphabet"), "place")
    assert list(AllophoneLabeling(LABELS, owner="x").classes(alignment, "place")) == [0, 2]
    other = tmp_path / "allophones"
    other.write_text("si{#+#}@i@f\nb{#+#}@i@f\n")
    with pytest.raises(DataError, match=r"calls label 67108865 'a\{#\+b\}@i.1', but allophone 1 is"):
        AllophoneLabeling({**LABELS, "allophone_file": str(other)}, owner="x").classes(alignment, "place")


def test_emission_numbers_are_classes(monkeypatch):
    monkeypatch.chdir(ROOT)
    alignment = decode_alignment(Archive("special.cache").read("emission_ids"), "place")
    labeling = AllophoneLabeling(LABELS, owner="x")
    with pytest.raises(DataError, match="class 6, but .* has 5"):
        labeling.classes(alignment, "place")
    labeling.num_labels = 7
    assert list(labeling.classes(alignment, "place")) == [5, 6]
