"""LhotseDataset: manifests and shards in the form in which Lhotse writes them, and what it can't read."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.utterances import CHARS, RATE, RAW, SAMPLES, TEXTS, check, wav, write_files


def cut(tag, **changed):
    """Return a cut as Lhotse 1.33 writes it."""
    seconds = len(SAMPLES[tag]) / RATE
    supervision = {"id": "s-" + tag, "recording_id": tag, "start": 0.0, "duration": seconds, "channel": 0}
    source = {"type": "file", "channels": [0], "source": "wav/%s.wav" % tag}
    line = {
        "id": tag,
        "start": 0.0,
        "duration": seconds,
        "channel": 0,
        "supervisions": [{**supervision, "text": TEXTS[tag], "language": "de", "speaker": "x"}],
        "recording": {
            "id": tag,
            "sources": [source],
            "sampling_rate": RATE,
            "num_samples": len(SAMPLES[tag]),
            "duration": seconds,
            "channel_ids": [0],
        },
        "type": "MonoCut",
    }
    return {**line, **changed}


def recording(tag, **changed):
    return {**cut(tag)["recording"], **changed}


def lines(**changed):
    return [cut(tag, **changed.get(tag, {})) for tag in TEXTS]


def dump(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    """Return a function that writes a manifest of cuts."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "wav")

    def make(entries=None):
        (tmp_path / "cuts.jsonl").write_text(dump(lines() if entries is None else entries))
        return "cuts.jsonl"

    return make


def write_shard(folder, number, tags, *, leave_out="", empty=""):
    folder.mkdir(exist_ok=True)
    placeholder = [{"type": "shar", "channels": [0], "source": ""}]
    entries = [cut(tag, recording=recording(tag, sources=placeholder)) for tag in tags]
    (folder / ("cuts.%06d.jsonl.gz" % number)).write_bytes(gzip.compress(dump(entries).encode()))
    with tarfile.open(folder / ("recording.%06d.tar" % number), "w") as file:
        for entry in entries:
            tag, has_data = entry["id"], entry["id"] != empty
            meta = json.dumps(entry["recording"]).encode()
            for ending, content in (("wav", wav(SAMPLES[tag])), ("json", meta)) if tag != leave_out else ():
                info = tarfile.TarInfo(
                    "%s.%s" % (tag, ending if has_data else {"wav": "nodata", "json": "nometa"}[ending])
                )
                info.size = len(content) if has_data else 0
                file.addfile(info, io.BytesIO(content))


@pytest.fixture
def shar(tmp_path):
    """Write two shards, and return their folder."""
    write_shard(tmp_path / "shar[1]", 0, ["one", "two"])
    write_shard(tmp_path / "shar[1]", 1, ["three"])
    return tmp_path / "shar[1]"


def open_(path, **options):
    given = {"class": "LhotseDataset", "name": "train", "path": str(path), "audio": RAW, "targets": CHARS}
    return Dataset.from_config({**given, **options})


def tags(dataset, **how):
    return [seq.tag for seq in dataset.sequences(1, **how)]


def test_cuts(manifest, tmp_path, monkeypatch):
    check(open_(manifest()))
    check(pickle.loads(pickle.dumps(open_(manifest()))))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(dump(lines()).encode()))
    monkeypatch.chdir("/")
    check(open_(tmp_path / "c.jsonl.gz", audio_dir=str(tmp_path)))


def test_order(manifest):
    assert tags(open_(manifest(), seq_ordering="sorted_reverse")) == ["three", "two", "one"]
    assert open_(manifest()).seq_lengths().tolist() == [50, 60, 70]
    assert tags(open_(manifest()), start=1, seq_list=["three", "one"]) == ["one"]


@pytest.mark.parametrize("shard", ["shar[1]", "shar[1]/"])
def test_shards(shar, tmp_path, shard):
    check(open_(str(tmp_path / shard)))
    dataset = open_(shar, audio=None)
    (shar / "recording.000000.tar").unlink()
    assert [seq.data["raw"].item() for seq in dataset.sequences(1)] == list(TEXTS.values())


def test_one_shard_without_number(shar):
    (shar / "cuts.000000.jsonl.gz").rename(shar / "cuts.jsonl.gz")
    (shar / "recording.000000.tar").rename(shar / "recording.tar")
    (shar / "cuts.000001.jsonl.gz").unlink()
    check(open_(shar), ["one", "two"])


@pytest.mark.parametrize("names", [["cuts_train.jsonl.gz", "cuts_dev.jsonl.gz"], ["cuts.train.jsonl"], ["cuts0.jsonl"]])
def test_a_folder_of_manifests_is_no_corpus(shar, names):
    for file in shar.iterdir():
        file.unlink()
    for name in names:
        (shar / name).write_bytes(b"")
    with pytest.raises(DataError, match="is neither a manifest .* nor a folder with cuts.000000.jsonl.gz"):
        tags(open_(shar))


def test_parts(manifest):
    (seq, *_) = open_(manifest(lines(one={"start": 0.25, "duration": 0.125}))).sequences(1)
    np.testing.assert_array_equal(seq.data["data"][:, 0], SAMPLES["one"][2000:3000])


def test_texts(manifest):
    two = [{**cut("one")["supervisions"][0], "text": text} for text in ("a b", "c")]
    (seq, *_) = open_(manifest(lines(one={"supervisions": two}))).sequences(1)
    assert seq.data["raw"].item() == "a b c"
    dataset = open_(manifest(lines(one={"supervisions": []})), targets=None, with_text=False)
    assert dataset.data_keys == ["data"] and tags(dataset) == list(TEXTS)


def test_channels(manifest, tmp_path):
    stereo = np.stack([SAMPLES["one"], -SAMPLES["one"]], axis=1)
    (tmp_path / "wav/one.wav").write_bytes(wav(stereo))
    source = {"type": "file", "channels": [0, 1], "source": "wav/one.wav"}
    both = recording("one", sources=[source], channel_ids=[0, 1])
    (seq, *_) = open_(manifest(lines(one={"recording": both, "channel": 1}))).sequences(1)
    np.testing.assert_array_equal(seq.data["data"][:, 0], -SAMPLES["one"])
    several = manifest([cut("one", recording=both, channel=[1, 0], type="MultiCut")])
    (seq,) = open_(several, audio={**RAW, "num_channels": 2}).sequences(1)
    np.testing.assert_array_equal(seq.data["data"][:, :, 0], stereo[:, ::-1])


def test_files_of_the_package(manifest, tmp_path):
    lhotse = pytest.importorskip("lhotse", reason="writes the files of this test; needs torch, so it is in no extra")
    recordings = lhotse.RecordingSet.from_recordings(
        lhotse.Recording.from_file("wav/%s.wav" % tag, recording_id=tag) for tag in TEXTS
    )
    supervisions = lhotse.SupervisionSet.from_segments(
        lhotse.SupervisionSegment(tag, tag, 0.0, recordings[tag].duration, text=text) for tag, text in TEXTS.items()
    )
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions).trim_to_supervisions()
    cuts.to_file("written.jsonl.gz")
    check(open_("written.jsonl.gz"))
    (tmp_path / "written").mkdir()
    cuts.to_shar("written", fields={"recording": "flac"}, shard_size=2)
    check(open_("written"))


MIXED = {"id": "m", "tracks": [{"cut": cut("one"), "type": "MonoCut", "offset": 0.0}], "type": "MixedCut"}
BAD = {
    "no folder": (None, {"path": "gone"}, "'gone' is neither a manifest .jsonl or .jsonl.gz nor a folder with cuts"),
    "no file": (None, {"path": "gone.jsonl"}, "file 'gone.jsonl' does not exist"),
    "recordings": ([recording("one")], {}, "line 1: it has recordings, but must have cuts; `lhotse cut simple`"),
    "supervisions": (cut("one")["supervisions"], {}, "line 1: it has supervisions, but must have cuts"),
    "mixed": ([cut("one"), MIXED], {}, "line 2: it is a MixedCut; write its audio by Lhotse, as shards"),
    "twice": ([cut("one"), cut("two"), cut("one")], {}, "line 3: the tag 'one' is that of file .*, line 1, too"),
    "duration": (lines(two={"duration": None}), {}, "line 2: 'id' is 'two' and 'duration' None, but it needs both"),
    "sped up": (
        lines(two={"recording": recording("two", transforms=[{"name": "Speed", "kwargs": {"factor": 1.1}}])}),
        {},
        r"sequence 'two' .*line 2: its recording is transformed \(Speed\); write its audio by Lhotse",
    ),
    "no recording": (lines(two={"recording": None}), {}, "'two' .*line 2: the cut has no recording; set audio=None"),
    "channel": (lines(two={"channel": 3}), {}, r"'two' .*none of the sources of its recording has the channels \[3\]"),
    "command": (
        lines(
            two={"recording": recording("two", sources=[{"type": "command", "channels": [0], "source": "touch ran"}])}
        ),
        {},
        "'two' .*its audio is a source of the type 'command', but only files, addresses and shards are read",
    ),
    "shard": (
        lines(two={"recording": recording("two", sources=[{"type": "shar", "channels": [0], "source": ""}])}),
        {},
        "'two' .*its audio is in a shard; give the folder as 'path', not the manifest",
    ),
    "beyond": (
        lines(two={"start": 0.5}),
        {},
        "'two' .*audio file 'wav/two.wav' has 0.600 s, but the segment is from 0.5",
    ),
    "shorter": (lines(two={"duration": 2.0}), {}, "'two' .*audio file 'wav/two.wav' has 0.600 s, but should have 2"),
    "no list": (
        lines(two={"supervisions": 3}),
        {},
        "'two' .*line 2: 'supervisions' is 3, but must be a list of objects",
    ),
    "no channel": (
        lines(two={"channel": "1"}),
        {},
        "'two' .*line 2: 'channel' is .'1'., but must be a number of a chann",
    ),
    "text": (lines(two={"supervisions": [{"id": "x"}]}), {}, "'two' .*line 2: its supervisions have no texts"),
    "rate": (None, {"audio": {**RAW, "sample_rate": 16000}}, "'one' .*line 1: audio file 'wav/one.wav': .*16000"),
}


@pytest.mark.parametrize("entries, options, text", BAD.values(), ids=list(BAD))
def test_bad_manifests(manifest, tmp_path, entries, options, text):
    path = manifest(entries)
    with pytest.raises(DataError, match="^dataset 'train'.*" + text):
        tags(open_(**{"path": path, **options}))
    assert not (tmp_path / "ran").exists()


def test_damaged_shards(shar):
    write_shard(shar, 1, ["three"], leave_out="three")
    with pytest.raises(
        DataError, match="cuts.000001.jsonl.gz', line 1: shard .*recording.000001.tar' lacks the cut 'three'"
    ):
        tags(open_(shar))
    write_shard(shar, 1, ["three"], empty="three")
    with pytest.raises(DataError, match="sequence 'three' .*shard .*recording.000001.tar' has no audio of the cut"):
        tags(open_(shar))
    tar = shar / "recording.000001.tar"
    tar.write_bytes(tar.read_bytes()[:700])
    with pytest.raises(DataError, match="shard '.*recording.000001.tar' is .*cut off"):
        tags(open_(shar))
    tar.unlink()
    with pytest.raises(DataError, match="option 'path': shard '.*recording.000001.tar' does not exist"):
        tags(open_(shar))


def test_wrong_options(manifest):
    with pytest.raises(ConfigError, match="option 'targets' needs texts"):
        open_(manifest(), with_text=False)
