"""NeMoDataset: manifests as NeMo writes them, parts of files, and manifests that are wrong."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.utterances import CHARS, RATE, RAW, SAMPLES, TEXTS, check, wav, write_files

FILES = ["wav/%s.wav" % tag for tag in TEXTS]


def lines(**changed):
    """Return the lines of a manifest; None as a change leaves a field out."""
    found = []
    for tag, text in TEXTS.items():
        line = {"audio_filepath": "wav/%s.wav" % tag, "duration": len(SAMPLES[tag]) / RATE, "text": text}
        line.update(changed.get(tag, {}))
        found.append({name: value for name, value in line.items() if value is not None})
    return found


def dump(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


@pytest.fixture
def corpus(tmp_path):
    """Return a function that writes a manifest, and returns the options of its dataset."""
    write_files(tmp_path / "wav")

    def make(content=None, **options):
        (tmp_path / "m.json").write_text(dump(lines()) if content is None else content)
        options = {"path": str(tmp_path / "m.json"), "audio": RAW, "targets": CHARS, **options}
        return {"class": "NeMoDataset", "name": "train", **options}

    return make


def open_(options, **more):
    return Dataset.from_config({**options, **more})


def tags(dataset, epoch=1, **how):
    return [seq.tag for seq in dataset.sequences(epoch, **how)]


@pytest.mark.parametrize("blank", ["", "\n", "  \r\n"])
def test_lines(corpus, blank):
    check(open_(corpus(blank.join(json.dumps(entry) + "\n" for entry in lines()))), FILES)


def test_packed_and_several(corpus, tmp_path):
    options = corpus()
    (tmp_path / "other").mkdir()
    absolute = [{**line, "audio_filepath": str(tmp_path / line["audio_filepath"])} for line in lines()]
    (tmp_path / "other" / "m.jsonl.gz").write_bytes(gzip.compress(dump(absolute).encode()))
    dataset = open_(options, path=[options["path"], str(tmp_path / "other" / "m.jsonl.gz")])
    check(dataset, FILES + [str(tmp_path / name) for name in FILES])
    assert dataset.num_seqs == 6


def test_folder_of_the_audio(corpus, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.json").write_text(dump(lines()))
    check(open_(corpus(), path=str(tmp_path / "sub" / "m.json"), audio_dir=str(tmp_path)), FILES)


@pytest.mark.parametrize(
    "offset, duration, part",
    [
        (None, None, slice(None)),
        (None, 0.25, slice(2000)),
        (0, 0.25, slice(2000)),
        (0.25, 0.125, slice(2000, 3000)),
        (0.25, None, slice(2000, None)),
        (0.25, 0.27, slice(2000, None)),  # rounded
        (None, 0.52, slice(None)),
        (None, 0.47, slice(None)),
    ],
)
def test_parts(corpus, offset, duration, part):
    one = {"offset": offset, "duration": duration}
    (seq, *_) = open_(corpus(dump(lines(one=one)))).sequences(1)
    np.testing.assert_array_equal(seq.data["data"][:, 0], SAMPLES["one"][part])
    assert seq.tag == "wav/one.wav" + ("" if offset is None else "@%.2f" % offset if offset else "@0.0")


def test_fields(corpus):
    content = dump({**line, "id": i, "words": line.pop("text")} for i, line in enumerate(lines()))
    dataset = open_(corpus(content), tag_field="id", text_field="words")
    assert tags(dataset) == ["0", "1", "2"]
    assert [seq.data["raw"].item() for seq in dataset.sequences(1)] == list(TEXTS.values())


def test_without_text(corpus):
    content = dump({**line, "text": None} for line in lines())
    assert open_(corpus(content), targets=None, text_field=None).data_keys == ["data"]
    with pytest.raises(ConfigError, match="option 'targets' needs texts"):
        open_(corpus(content), text_field=None)


def write_shard(path, contents):
    """Write a tar file of audio as NeMo's script does: names without directories."""
    with tarfile.open(path, "w") as file:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


@pytest.fixture
def tarred(tmp_path):
    """Write two shards, 0 and 1, and return a function that writes their manifests and opens them."""
    names = {tag: "wav_%s.wav" % tag for tag in TEXTS}
    write_shard(tmp_path / "audio_0.tar", {names[tag]: wav(SAMPLES[tag]) for tag in ("two", "one")})
    write_shard(tmp_path / "audio_1.tar", {names["three"]: wav(SAMPLES["three"]), "more.wav": b"nothing"})
    of_shards = {"one": 0, "two": 0, "three": 1}
    entries = {line["text"]: {**line, "audio_filepath": line["audio_filepath"].replace("/", "_")} for line in lines()}

    def make(form="one", **options):
        """Write manifests: one with the numbers of shards, one without them, or one for each shard."""
        found = [{**entries[text], "shard_id": of_shards[tag]} for tag, text in TEXTS.items()]
        if form == "without":
            found = [{name: value for name, value in line.items() if name != "shard_id"} for line in found]
        (tmp_path / "tarred_audio_manifest.json").write_text(dump(found))
        for number in range(2):
            own = [{**line, "shard_id": None} for line in found if line.get("shard_id", number) == number]
            (tmp_path / ("manifest_%d.json" % number)).write_text(dump(own))
        path = str(tmp_path / ("manifest__OP_0..1_CL_.json" if form == "sharded" else "tarred_audio_manifest.json"))
        given = {"path": path, "tarred_audio_filepaths": str(tmp_path / "audio_{0..1}.tar"), "audio": RAW}
        return open_({"class": "NeMoDataset", "name": "train", "targets": CHARS, **given, **options})

    return make


@pytest.mark.parametrize("form", ["one", "without", "sharded"])
def test_tarred(tarred, form, tmp_path):
    check(tarred(form), ["wav_%s.wav" % tag for tag in TEXTS])
    check(pickle.loads(pickle.dumps(tarred(form))), ["wav_%s.wav" % tag for tag in TEXTS])
    listed = [str(tmp_path / ("audio_%d.tar" % number)) for number in (1, 0)]
    check(tarred(form, tarred_audio_filepaths=listed), ["wav_%s.wav" % tag for tag in TEXTS])
    (tmp_path / "audio_1.tar").unlink()
    assert [seq.data["raw"].item() for seq in tarred(form, audio=None).sequences(1)] == list(TEXTS.values())


def test_parts_of_a_file_in_a_shard(tarred, tmp_path):
    """Their names are numbered in the manifest, or they have the name of the file; other endings do not matter."""
    entries = [
        {"audio_filepath": "wav_one-sub1.wav", "duration": 0.25, "text": "a"},
        {"audio_filepath": "wav_one-sub2.flac", "offset": 0.25, "duration": 0.25, "text": "b"},
        {"audio_filepath": "d/wav_one.wav", "offset": 0.125, "duration": 0.125, "text": "c"},
    ]
    (tmp_path / "parts.json").write_text(dump(entries))
    found = list(tarred(path=str(tmp_path / "parts.json")).sequences(1))
    for seq, (first, last) in zip(found, [(0, 2000), (2000, 4000), (1000, 2000)]):
        np.testing.assert_array_equal(seq.data["data"][:, 0], SAMPLES["one"][first:last])


def test_corpora_whose_shards_have_the_same_numbers(tarred, tmp_path):
    (tmp_path / "other").mkdir()
    write_shard(tmp_path / "other" / "audio_0.tar", {"x.wav": wav(SAMPLES["one"])})
    (tmp_path / "other" / "manifest_0.json").write_text(dump([{"audio_filepath": "x.wav", "text": "x"}]))
    tarred("sharded")
    paths = {
        "path": [str(tmp_path / "manifest_{0..1}.json"), str(tmp_path / "other" / "manifest_0.json")],
        "tarred_audio_filepaths": [str(tmp_path / "audio_{0..1}.tar"), str(tmp_path / "other" / "audio_0.tar")],
    }
    *_, last = tarred("sharded", **paths).sequences(1)
    np.testing.assert_array_equal(last.data["data"][:, 0], SAMPLES["one"])


_LINE = {"audio_filepath": "wav_one.wav", "text": "x"}


@pytest.mark.parametrize(
    "entries, options, text",
    [
        ([{**_LINE, "shard_id": 7}], {}, "m.json', line 1: its audio is in the shard 7, which is none of the 2 of"),
        ([{**_LINE, "shard_id": 1}], {}, "m.json', line 1: shard '.*audio_1.tar' has no member for 'wav_one.wav'"),
        ([{**_LINE, "shard_id": "x"}], {}, "m.json', line 1: 'shard_id' is 'x', but must be the number of a shard"),
        ([_LINE, {**_LINE, "audio_filepath": "y"}], {}, "line 2: tarred_audio_filepaths has no member for 'y'"),
        ([_LINE], {"tarred_audio_filepaths": ["audio_0.tar"] * 2}, "has several members for 'wav_one.wav'"),
        ([{**_LINE, "audio_filepath": "more.wav"}], {}, "line 1: audio file '.*audio_1.tar:more.wav' cannot be decod"),
        ([_LINE], {"tarred_audio_filepaths": "gone_{0..1}.tar"}, "shard 'gone_0.tar' does not exist"),
    ],
)
def test_shards_that_do_not_fit(tarred, tmp_path, monkeypatch, entries, options, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text(dump(entries))
    with pytest.raises(DataError, match="^dataset 'train'.*" + text):
        list(tarred(path="m.json", **options).sequences(1))


def test_options_of_tarred_corpora(tarred, caplog):
    with pytest.raises(ConfigError, match="option 'tarred_audio_filepaths' is empty"):
        tarred(tarred_audio_filepaths=[])
    tarred(audio_dir="d")
    assert "'audio_dir'" in caplog.text and "tarred_audio_filepaths takes its place" in caplog.text


@pytest.mark.parametrize("beside", [True, False])
def test_texts_in_files(corpus, tmp_path, monkeypatch, beside):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / ("" if beside else "here") / "one.txt").write_text("a\nbé\n", "utf8")
    content = dump(lines(one={"text": None, "text_filepath": "one.txt"}))
    assert next(iter(open_(corpus(content)).sequences(1))).data["raw"].item() == "abé"


@pytest.mark.parametrize(
    "given, text",
    [
        ({"text_filepath": "gone.txt"}, "file 'gone.txt' does not exist"),
        ({"text_filepath": 3}, "'text_filepath' is 3, but must be a path"),
        ({"text_filepath": "m.json.gz"}, "file '.*m.json.gz' cannot be read"),
    ],
)
def test_texts_that_cannot_be_read(corpus, tmp_path, given, text):
    (tmp_path / "m.json.gz").write_bytes(b"x")
    content = dump(lines(two={"text": None, **given}))
    with pytest.raises(DataError, match="^dataset 'train', sequence 'wav/two.wav' .*m.json', line 2: " + text):
        list(open_(corpus(content)).sequences(1))


def test_lines_to_skip(corpus):
    content = dump(lines(two={"_skipme": True}, three={"_skipme": False}))
    assert tags(open_(corpus(content))) == FILES[::2]


def test_order_and_selection(corpus, tmp_path):
    options = corpus(seq_ordering="sorted_reverse")
    assert tags(open_(options)) == FILES[::-1]
    assert open_(options).seq_lengths().tolist() == [50, 60, 70]
    halves = [tags(open_(options, partition_epoch=2), epoch) for epoch in (1, 2)]
    assert sorted(halves[0] + halves[1]) == sorted(FILES) and all(halves)
    (tmp_path / "keep").write_text("\n".join(FILES[1:]))
    assert tags(open_(options, segment_file=str(tmp_path / "keep"))) == FILES[:0:-1]
    assert len(tags(open_(options, fixed_random_subset=2))) == 2
    assert tags(open_(options, epoch_wise_filter={(1, 1): {"max_mean_len": 55}})) == FILES[1::-1]
    assert tags(open_(options), seq_list=FILES[2:]) == FILES[2:]


def test_goes_on_without_reading_what_was_before(corpus, monkeypatch):
    dataset = open_(corpus())
    read = []
    samples = type(dataset).samples
    monkeypatch.setattr(type(dataset), "samples", lambda self, index: read.append(index) or samples(self, index))
    assert tags(dataset, start=2) == FILES[2:]
    assert read == [2]


def test_text_alone(corpus, tmp_path):
    for name in FILES:
        (tmp_path / name).unlink()
    dataset = open_(corpus(), audio=None)
    assert dataset.data_keys == ["classes", "orth", "raw"]
    assert [seq.data["raw"].item() for seq in dataset.sequences(1)] == list(TEXTS.values())


def test_in_another_process(corpus):
    check(pickle.loads(pickle.dumps(open_(corpus()))), FILES)


BAD_MANIFESTS = {
    "empty": ("", {}, "option 'path': text file .*m.json' is empty"),
    "blank": ("\n \n", {}, "there are no utterances in '.*m.json'"),
    "json": (dump(lines()[:1]) + '{"audio_filepath": "a', {}, "m.json', line 2: it is no JSON: Unterminated string"),
    "deep": ("[" * 100000, {}, "m.json', line 1: it is no JSON"),
    "list": ("[1]\n", {}, r"m.json', line 1: it is \[1\], but each line must be a JSON object"),
    "utf8": ('{"a": "\udcff"}', {}, "m.json', line 1: it is not UTF-8"),
    "surrogate": ('{"audio_filepath": "\\ud800"}', {}, "line 1: it is no JSON: .*surrogates not allowed"),
    "no path": (dump(lines(two={"audio_filepath": None})), {}, "line 2: there is no 'audio_filepath', only 'duration'"),
    "path": (dump(lines(two={"audio_filepath": 3})), {}, "line 2: 'audio_filepath' is 3, but must be a path"),
    "twice": (
        dump(lines() + lines()[1:2]),
        {},
        "m.json', line 4: the tag 'wav/two.wav' is that of file '.*m.json', line 2, too",
    ),
    "duration": (dump(lines(two={"duration": "1"})), {}, "line 2: 'duration' is '1', but must be a number of seconds"),
    "not finite": (dump(lines(two={"duration": float("nan")})), {}, "line 2: 'duration' is nan"),
    "long": (dump(lines(two={"duration": 1e30})), {}, "line 2: 'duration' is 1e.30, but must be a number of seconds"),
    "offset": (dump(lines(two={"offset": -1})), {}, "line 2: 'offset' is -1, but must be a number of seconds"),
    "tag": (None, {"tag_field": "id"}, "line 1: tag_field 'id' is None, but must be a string or an integer"),
    "no duration": (
        dump(lines(two={"duration": None})),
        {"seq_ordering": "sorted"},
        "m.json', line 2: there is no 'duration', by which to order",
    ),
    "no text": (
        dump(lines(two={"text": None})),
        {},
        "sequence 'wav/two.wav' .*m.json', line 2: there is no 'text', only 'audio_filepath', 'duration'",
    ),
    "text": (dump(lines(two={"text": 5})), {}, "sequence 'wav/two.wav' .*line 2: 'text' is 5, but must be a string"),
    "no file": (
        dump(lines(two={"audio_filepath": "two.wav"})),
        {},
        "sequence 'two.wav' .*m.json', line 2: audio file '.*/two.wav' does not exist",
    ),
    "shorter": (
        dump(lines(two={"duration": 2.0})),
        {},
        "sequence 'wav/two.wav' .*line 2: audio file '.*two.wav' has 0.600 s, but should have 2; is it cut off",
    ),
    "beyond": (
        dump(lines(two={"offset": 0.5, "duration": 1})),
        {},
        "sequence 'wav/two.wav@0.5' .*line 2: audio file '.*two.wav' has 0.600 s, but the segment is from 0.5 to 1.5 s",
    ),
    "rate": (None, {"audio": {**RAW, "sample_rate": 16000}}, "'wav/one.wav' .*line 1: audio file '.*one.wav': .*16000"),
    "no manifest": (None, {"path": "gone.json"}, "option 'path': file 'gone.json' does not exist"),
    "folder": (None, {"path": "."}, "option 'path': file '.' cannot be read: it is a directory"),
}


@pytest.mark.parametrize("content, options, text", BAD_MANIFESTS.values(), ids=list(BAD_MANIFESTS))
def test_bad_manifests(corpus, tmp_path, content, options, text):
    given = corpus()
    if content is not None:
        (tmp_path / "m.json").write_text(content, errors="surrogateescape")
    with pytest.raises(DataError, match="^dataset 'train'.*" + text):
        list(open_(given, **options).sequences(1))


@pytest.mark.parametrize(
    "content, text", [(wav(SAMPLES["two"])[:3000], "is incomplete"), (b"RIFF", "cannot be decoded")]
)
def test_damaged_audio_is_named_or_left_out(corpus, tmp_path, content, text, caplog):
    (tmp_path / FILES[1]).write_bytes(content)
    with pytest.raises(DataError, match="'wav/two.wav' .*m.json', line 2: audio file '.*two.wav' " + text):
        list(open_(corpus()).sequences(1))
    assert tags(open_(corpus(), skip_broken_seqs=True)) == FILES[::2]
    assert "1 sequences could not be read" in caplog.text


def test_wrong_options(corpus):
    with pytest.raises(ConfigError, match="unknown option 'manifest'.*"):
        open_(corpus(), manifest="m.json")
    with pytest.raises(ConfigError, match="option 'path' is empty"):
        open_(corpus(), path=[])


def test_one_line_on_the_command_line(corpus, tmp_path, capsys):
    (tmp_path / "c.config").write_text("train = %r\nextern_data = {'data': {'dim': 1}}" % corpus())
    (tmp_path / FILES[1]).unlink()
    assert main(["data", "dump", str(tmp_path / "c.config")]) == 1
    (line, more) = capsys.readouterr().err.splitlines()
    assert "sequence 'wav/two.wav'" in line and "line 2: audio file" in line and more.startswith("More: ")
