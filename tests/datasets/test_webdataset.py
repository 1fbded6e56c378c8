"""WebDataset: shards that the package webdataset wrote, and shards that are damaged."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import pickle
import tarfile

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.speech import tar_shards, webdataset
from returnn_tf.datasets.speech.webdataset import shards_of
from tests.datasets.utterances import CHARS, RAW, SAMPLES, TEXTS, check, wav
from tests.waiting import until

FRAMES = {"one": 5, "two": 7, "three": 6}
ARRAYS = {tag: np.random.RandomState(n).normal(size=(n, 3)).astype("float32") for tag, n in FRAMES.items()}


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def members():
    """Return (name, content) of a shard with all."""
    found = []
    for number, (tag, text) in enumerate(TEXTS.items()):
        contents = {"json": json.dumps({"words": text}).encode(), "txt": text.encode(), "wav": wav(SAMPLES[tag])}
        contents.update({"cls": b"%d" % number, "feat.npy": npy(ARRAYS[tag])})
        found += [("%s.%s" % (tag, ending), content) for ending, content in contents.items()]
    return found


def write(path, entries):
    with tarfile.open(path, "w") as file:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return str(path)


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "a.tar", members())


def open_(path, **options):
    given = {"class": "WebDataset", "name": "train", "path": path, "audio": RAW, "targets": CHARS}
    return Dataset.from_config({**given, **options})


def tags(dataset, epoch=1, **how):
    return [seq.tag for seq in dataset.sequences(epoch, **how)]


def test_shards_of_the_package(tmp_path):
    package = pytest.importorskip("webdataset", reason="writes the shards of this test; one of the extra 'dev'")
    with package.ShardWriter(str(tmp_path / "s-%06d.tar"), maxcount=2, verbose=0) as writer:
        for tag, text in TEXTS.items():
            writer.write({"__key__": "d/" + tag, "wav": wav(SAMPLES[tag]), "txt": text, "npy": ARRAYS[tag]})
    expected = ["d/" + tag for tag in TEXTS]
    for pattern in ("s-{000000..000001}.tar", "s-*.tar", "s-00000{0,1}.tar"):
        check(open_(str(tmp_path / pattern)), expected)
    dataset = open_(str(tmp_path / "s-*.tar"), audio=None, arrays={"data": "npy"})
    for seq in dataset.sequences(1):
        np.testing.assert_array_equal(seq.data["data"], ARRAYS[seq.tag[2:]])


def test_members(shard):
    check(open_(shard))
    check(pickle.loads(pickle.dumps(open_(shard))))
    check(open_(shard, text_member="json", text_field="words"))
    check(open_(shard, text_member="JSON", text_field="words", audio_member="WAV"))  # endings of members are lowered
    dataset = open_(shard, audio=None, targets=None, text_member=None, arrays={"data": "feat.NPY", "who": "cls"})
    assert dataset.data_keys == ["data", "who"] and dataset.num_inputs == 3 and dataset.data_specs["who"].ndim == 0
    for number, seq in enumerate(dataset.sequences(1)):
        np.testing.assert_array_equal(seq.data["data"], ARRAYS[seq.tag])
        assert seq.data["who"].item() == number


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("a.tar", ["a.tar"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("gone-*.tar", ["gone-*.tar"]),
    ],
)
def test_patterns(pattern, found):
    assert shards_of(pattern) == found


def test_order_and_selection(shard):
    assert tags(open_(shard, seq_ordering="sorted_reverse")) == ["three", "two", "one"]
    assert open_(shard).seq_lengths().tolist() == [len(wav(samples)) for samples in SAMPLES.values()]
    halves = [tags(open_(shard, seq_ordering="random", partition_epoch=2), epoch) for epoch in (1, 2)]
    assert sorted(halves[0] + halves[1]) == sorted(TEXTS) and all(halves)
    assert tags(open_(shard), seq_list=["two"]) == ["two"]


def test_goes_on_without_reading_what_was_before(shard, monkeypatch):
    dataset = open_(shard)
    list(dataset.sequences(1, start=3))
    corpus, read = dataset.index.corpus, []
    content = corpus._content
    monkeypatch.setattr(corpus, "_content", lambda name, entry: read.append(entry) or content(name, entry))
    assert tags(dataset, start=2) == ["three"] and set(read) == {2}


def test_keys_of_one_shard(tmp_path):
    paths = [write(tmp_path / name, members()) for name in ("a.tar", "b.tar")]
    with pytest.raises(DataError, match="shard '.*b.tar': the tag 'one' is that of shard '.*a.tar', too"):
        tags(open_(paths))
    check(open_(paths, shard_in_tag=True), ["%s:%s" % item for item in itertools.product(paths, TEXTS)])


def test_many_members(tmp_path):
    entries = [("%s/%d.txt" % ("long" * 40, number), b"%d" % number) for number in range(1000)]
    dataset = open_(write(tmp_path / "a.tar", [("__shard__/info.json", b"{}"), ("readme", b""), *entries]), audio=None)
    assert [seq.data["raw"].item() for seq in dataset.sequences(1)] == [str(number) for number in range(1000)]


def test_in_sub_epochs(tmp_path, monkeypatch):
    paths = [write(tmp_path / (tag + ".tar"), [m for m in members() if m[0].startswith(tag)]) for tag in TEXTS]
    opened, samples = set(), webdataset.samples_of
    monkeypatch.setattr(webdataset, "samples_of", lambda path, name: opened.add(name) or samples(path, name))
    dataset = Dataset.from_config({
        "class": "DistributeFilesDataset", "files": paths, "partition_epoch": 3,
        "get_sub_epoch_dataset": lambda files: {
            "class": "WebDataset", "path": files, "audio": RAW, "targets": CHARS, "seq_ordering": "random"
        },
    })  # fmt: skip
    found = tags(dataset, 1)
    until(lambda: opened == set(paths[:2]), "the shard of the next epoch is indexed")
    assert [*found, *tags(dataset, 2), *tags(dataset, 3)] == list(TEXTS)


_LONG = "d" * 90 + "/" + "e" * 90 + "/" + "é" * 120 + ".txt"


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("everywhere", [{}, {"comment": "x"}])
@pytest.mark.parametrize("checked_at_once", [1, 256])
def test_headers_of_all_kinds(tmp_path, monkeypatch, format_, everywhere, checked_at_once):
    """Long names, times with fractions, links, folders and records for all members are as `tarfile` reads them."""
    monkeypatch.setattr(tar_shards, "_CHECKED_AT_ONCE", checked_at_once)
    names = ["a.txt", "d/", "p" * 100 + "/" + "q" * 90, _LONG, "é.txt", "link", "b.txt", "hard", "c.txt", "last"]
    names = [name for name in names if format_ != tarfile.USTAR_FORMAT or name != _LONG]
    kinds = {"d/": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "c.txt": tarfile.CONTTYPE}
    with tarfile.open(tmp_path / "a.tar", "w", format=format_, pax_headers=everywhere) as file:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kinds.get(name, tarfile.REGTYPE), "a.txt" if name in ("link", "hard") else ""
            info.mtime = number + 0.5 * (format_ == tarfile.PAX_FORMAT and number % 3 == 0)
            info.size = 0 if name in ("d/", "link", "hard") else 300 * number
            file.addfile(info, io.BytesIO(bytes(info.size)))
    with tarfile.open(tmp_path / "a.tar") as file:
        expected = [(info.name, info.offset_data, info.size) for info in file if info.isreg()]
    assert len(expected) >= 6
    assert list(tar_shards.tar_members(str(tmp_path / "a.tar"), "a.tar")) == expected


@pytest.mark.parametrize("place", [0, 3, 110, 125, 150, 400])
@pytest.mark.parametrize("mtime", [0, 1.5])
def test_a_damaged_header(tmp_path, place, mtime):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as file:
        for name in ("a.txt", "b.txt"):
            info = tarfile.TarInfo(name)
            info.mtime = mtime
            file.addfile(info)
    content = bytearray((tmp_path / "a.tar").read_bytes())
    content[content.index(b"b.txt") + place] ^= 5
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(DataError, match="shard 'a.tar' is "):
        list(tar_shards.tar_members(str(tmp_path / "a.tar"), "a.tar"))


def _cut(path, size):
    content = path.read_bytes()
    path.write_bytes(content[:size])


def _pack(path):
    path.write_bytes(gzip.compress(path.read_bytes()))


def _end(path):
    """Return the position after the last member."""
    with tarfile.open(path) as file:
        last = file.getmembers()[-1]
        return last.offset_data + (last.size + 511) // 512 * 512


DAMAGED = {
    "within a member": (
        lambda path: _cut(path, _end(path) - 600),
        "cut off",
    ),
    "between members": (lambda path: _cut(path, _end(path)), "is cut off: it lacks the blocks that end a tar file"),
    "packed": (_pack, "is compressed as a whole, .* decompress it"),
    "text": (lambda path: path.write_text("hello" * 200), "is no tar file, damaged or cut off"),
    "empty": (lambda path: write(path, []), "has no members KEY.ENDING"),
    "missing": (lambda path: path.unlink(), "does not exist"),
    "twice": (lambda path: write(path, [("a.txt", b""), ("a.txt", b"")]), "key 'a': it has two members 'txt'"),
    "apart": (
        lambda path: write(path, [(n, b"") for n in ("a.txt", "b.txt", "a.cls")]),
        "the tag 'a' is that of shard",
    ),
}


@pytest.mark.parametrize("damage, text", DAMAGED.values(), ids=list(DAMAGED))
def test_damaged_shards(shard, tmp_path, damage, text):
    damage(tmp_path / "a.tar")
    with pytest.raises(DataError, match="^dataset 'train' .WebDataset.: .*shard '.*a.tar'.*" + text):
        tags(open_(shard))


@pytest.mark.parametrize(
    "changed, options, text",
    [
        ({"two.wav": None}, {}, "it has no member 'flac' or 'wav' or"),
        ({"two.wav": None}, {"audio_member": "wav"}, "it has no member 'wav'"),
        ({"two.wav": b"RIFF"}, {}, "audio file '.*a.tar:two' cannot be decoded"),
        (
            {"two.wav": wav(SAMPLES["two"], 16000)},
            {"audio": {**RAW, "sample_rate": 8000}},
            "audio file '.*a.tar:two': .*16000",
        ),
        ({"two.txt": b"\xff"}, {}, "its text cannot be read: 'utf-8' codec"),
        ({"two.json": b"{"}, {"text_member": "json", "text_field": "words"}, "its text cannot be read: Expecting"),
        ({"two.json": b"{}"}, {"text_member": "json", "text_field": "words"}, "its field 'words' is None, but must be"),
        ({"two.feat.npy": b"x"}, {"arrays": {"x": "feat.npy"}}, "its member 'feat.npy' cannot be read"),
        (
            {"two.feat.npy": npy(np.array([{}]))},
            {"arrays": {"x": "feat.npy"}},
            "its member 'feat.npy' cannot be read: .*pickle",
        ),
        ({"two.cls": b"a"}, {"arrays": {"x": "cls"}}, "its member 'cls' cannot be read"),
    ],
)
def test_damaged_members(tmp_path, changed, options, text):
    entries = [(name, changed.get(name, content)) for name, content in members()]
    path = write(tmp_path / "a.tar", [(name, content) for name, content in entries if content is not None])
    with pytest.raises(DataError, match="^dataset 'train', sequence 'two' .*shard '.*a.tar': " + text):
        tags(open_(path, **options))
    assert tags(open_(path, skip_broken_seqs=True, **options)) == ["one", "three"]


def test_a_shard_that_becomes_shorter(shard, tmp_path):
    dataset = open_(shard)
    assert dataset.num_seqs == 3
    _cut(tmp_path / "a.tar", 100)
    with pytest.raises(DataError, match="sequence 'one' .*shard '.*a.tar' is cut off"):
        tags(dataset)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"text_field": "words"}, "option 'text_field' needs a text_member with JSON"),
        ({"text_field": "words", "text_member": "TXT"}, "option 'text_field' needs a text_member with JSON"),
        (
            {"text_field": "words", "text_member": None, "targets": None},
            "option 'text_field' needs a text_member with JSON",
        ),
        (
            {"text_member": None, "targets": None, "orth_post_process": "lowercase"},
            "option 'orth_post_process' needs texts, but the corpus is without",
        ),
        ({"path": "{9..1}.tar"}, "the range '{9..1}' of shards is empty"),
        ({"audio": None, "targets": None, "text_member": None}, "there is no data key"),
    ],
)
def test_wrong_options(shard, options, text):
    with pytest.raises(ConfigError, match="^dataset 'train'.*" + text):
        tags(open_(**{"path": shard, **options}))


def test_no_such_array(shard):
    with pytest.raises(
        DataError, match="option 'arrays': shard '.*', key 'one': there is no member 'npy', only 'json'"
    ):
        open_(shard, arrays={"x": "npy"})
