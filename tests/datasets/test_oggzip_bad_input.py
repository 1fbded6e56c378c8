"""OggZip corpora and options that are not what they should be."""

from __future__ import annotations

import os
import random
import zipfile

import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.speech.literal_list import read_columns, read_dicts
from tests.datasets.recorded import ROOT
from tests.datasets.test_oggzip import CHARS, corpus, entries, make_zip, tone


def _as_text(change):
    def make(path):
        given = entries()
        change(given)
        return make_zip(path, repr(given))

    return make


def _set(index, **values):
    return _as_text(lambda given: given[index].update(values))


def _drop(index, key):
    return _as_text(lambda given: given[index].pop(key))


def _damaged(offset):
    def make(path):
        make_zip(path, compression=zipfile.ZIP_STORED)
        content = bytearray(path.read_bytes())
        start = content.index(b"WAVE") + offset
        content[start : start + 20] = bytes(20)
        path.write_bytes(content)
        return str(path)

    return make


def _cut(path):
    make_zip(path)
    path.write_bytes(path.read_bytes()[:2000])
    return str(path)


def _text_of(path, text):
    path.write_text(text)
    return str(path)


BAD = {
    "no_text": (lambda p: make_zip(p, False), {}, r"a.zip' has no text 'a.txt'\. An OggZip corpus has one"),
    "renamed": (
        lambda p: os.rename(make_zip(p.with_name("b.zip")), p) or str(p),
        {},
        "but 'b.txt'; was the file renamed.*content_name='b'",
    ),
    "cut_off": (_cut, {}, "zip file .*a.zip' cannot be read: .*Was it copied completely"),
    "no_zip": (lambda p: _text_of(p, "hello" * 100), {}, "zip file .*a.zip' cannot be read: File is not a zip file"),
    "directory": (lambda p: p.mkdir() or str(p), {}, "zip file .*a.zip' cannot be read: .*Is a directory"),
    "bare_directory": (
        lambda p: p.with_name("d").mkdir() or str(p.with_name("d")),
        {},
        "d' is neither a .zip file nor .*a directory needs the text .*/d.txt' beside it",
    ),
    "other_file": (lambda p: str(p.with_name("a.tar")), {}, "a.tar' is neither a .zip file nor a .txt.gz file"),
    "text_cut": (
        lambda p: make_zip(p, repr(entries())[:-20]),
        {},
        "text 'a.txt' in zip file .*: entry 3: a string has no end",
    ),
    "text_json": (
        lambda p: make_zip(p, '[{"text": "a", "duration": 1.0, "file": null}]'),
        {},
        "entry 0: 'null' is not expected there. This is JSON",
    ),
    "text_no_utf8": (lambda p: make_zip(p, "[{'text': 'zoë'}]".encode("latin1")), {}, "is not UTF-8 text"),
    "text_exponent": (
        lambda p: make_zip(p, "[{'text': 'a', 'duration': 1e-5}]"),
        {},
        "'1e-5' is not expected there. Write it without exponent",
    ),
    "text_call": (lambda p: make_zip(p, "[{'text': print()}]"), {}, "entry 0: 'print' is not expected"),
    "text_dict": (lambda p: make_zip(p, "{}"), {}, "must be a list of dicts, but begins with '{}'"),
    "text_no_list": (lambda p: make_zip(p, "[1]"), {}, "entry 0: it is 1, not a dict"),
    "huge_number": (_set(1, duration=10**1000), {"seq_ordering": "sorted"}, "sequence 'corpus/1' has no duration"),
    "text_empty": (lambda p: make_zip(p, "[]"), {}, "has no entries"),
    "text_more": (lambda p: make_zip(p, repr(entries()) + "]"), {}, "goes on after its list"),
    "duration_int": (_set(0, duration=1), {}, "first entry: 'duration' is 1, but must be a float"),
    "text_missing": (_drop(0, "text"), {}, "first entry: 'text' is None, but must be a string"),
    "file_missing": (_drop(0, "file"), {}, "first entry: 'file' is None, .*set audio=None"),
    "later_text": (_set(2, text=7), {}, "sequence 'corpus/2' .*its 'text' is 7, not a string"),
    "later_file": (_drop(2, "file"), {}, "sequence 'corpus/2' .*it has no 'file' with audio"),
    "later_duration": (_drop(2, "duration"), {"seq_ordering": "sorted"}, "sequence 'corpus/2' has no duration"),
    "no_member": (lambda p: make_zip(p, wav2=None), {}, "sequence 'corpus/2' .*a.zip' has no audio file 'a/2.wav'"),
    "empty_member": (lambda p: make_zip(p, wav2=b""), {}, "'corpus/2'.*audio file '.*a.zip:a/2.wav' cannot be decoded"),
    "no_audio": (
        lambda p: make_zip(p, wav2=b"hello" * 50),
        {},
        "'corpus/2'.*audio file '.*a.zip:a/2.wav' cannot be decoded",
    ),
    "bomb": (
        lambda p: make_zip(p, wav2=bytes(80 << 20)),
        {},
        "'corpus/2'.*a.zip': member 'a/2.wav' cannot be read: it would unpack from [0-9]+ to 83886080 bytes",
    ),
    "bomb_in_bzip2": (
        lambda p: make_zip(p, wav2=bytes(80 << 20), compression=zipfile.ZIP_BZIP2),
        {},
        "member 'a/2.wav' cannot be read: it would unpack from [0-9]+ to 83886080 bytes",
    ),
    "empty_audio": (lambda p: make_zip(p, wav2=tone(0)), {}, "'corpus/2'.*a/2.wav'.*the audio is empty"),
    "damaged": (
        _damaged(100),
        {},
        "'corpus/0'.*member 'a/0.wav' cannot be read: its content has another length or checksum",
    ),
    "sample_rates": (
        lambda p: make_zip(p, wav2=tone(0.3, 16000)),
        {"audio": {"sample_rate": 8000}},
        "'corpus/2'.*a/2.wav'.*16000 samples per second, but the option sample_rate is 8000",
    ),
    "unknown_label": (
        make_zip,
        {"targets": {**CHARS, "unknown_label": None}},
        "sequence 'corpus/3' .*'z' is not among",
    ),
    "segments": (make_zip, {"segment_file": "nobody"}, "none of its 4 sequences is in segment_file '.*nobody' .1 tags"),
    "no_segments": (make_zip, {"segment_file": "nowhere"}, "nowhere' does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, tmp_path):
    make, options, text = BAD[name]
    options = dict(options)
    (tmp_path / "nobody").write_text("somebody\n")
    if "segment_file" in options:
        options["segment_file"] = str(tmp_path / options["segment_file"])
    dataset = corpus(make(tmp_path / "a.zip"), **options)
    with pytest.raises(DataError, match=text):
        list(dataset.sequences(1))


@pytest.mark.parametrize("value", [-1.0, float("-inf"), 1e13, "long", True])
def test_durations_that_are_none(value, tmp_path, caplog):
    """They do not matter for most orders, but are told."""
    given = entries()
    given[1]["duration"] = value
    path = make_zip(
        tmp_path / "a.zip", repr(given).replace("-inf", "-1" + "0" * 400 + ".0").replace("1e+13", "1" + "0" * 13)
    )
    assert len(list(corpus(path).sequences(1))) == 4
    (text,) = caplog.messages
    assert "1 sequences have a duration that is not a number of seconds, e.g. 'corpus/1': " in text
    with pytest.raises(DataError, match="sequence 'corpus/1' has no duration"):
        list(corpus(path, seq_ordering="sorted").sequences(1))


def test_tags_that_occur_twice(tmp_path, caplog):
    """As in RETURNN, lists of tags choose the last one; here that is told."""
    given = entries()
    given[2]["seq_name"] = given[0]["seq_name"]
    dataset = corpus(make_zip(tmp_path / "a.zip", repr(given)))
    assert [seq.index for seq in dataset.sequences(1, seq_list=["corpus/0"])] == [2]
    (text,) = caplog.messages
    assert "1 sequences have the tag of an earlier one, e.g. 'corpus/0'. Lists of tags choose the last one" in text


def test_segments_to_keep_that_are_not_there(tmp_path, caplog):
    (tmp_path / "keep").write_text("corpus/1\nnone\n")
    dataset = corpus(make_zip(tmp_path / "a.zip"), segment_file=str(tmp_path / "keep"))
    assert [seq.tag for seq in dataset.sequences(1)] == ["corpus/1"]
    (text,) = caplog.messages
    assert "1 of the 2 tags in segment_file" in text and "e.g. 'none'" in text


@pytest.mark.parametrize(
    "options, text",
    [
        ({"path": []}, "option 'path' is empty"),
        ({"fixed_random_subset": -1}, "'fixed_random_subset' is -1"),
        ({"fixed_random_subset": float("nan")}, "'fixed_random_subset' is nan"),
        ({"fixed_random_subset": float("inf")}, "'fixed_random_subset' is inf"),
        ({"fixed_random_subset": 1.5}, "'fixed_random_subset' is 1.5"),
        ({"targets": {"vocab_file": "x", "unknown": 3}}, "targets: Vocabulary: unknown option 'unknown'"),
        ({"audio": {"feature": "mfcc"}}, "audio: unknown option 'feature'. Did you mean 'features'"),
        ({"targets_post_process": "lowercas"}, "targets_post_process"),
        ({"epoch_wise_filter": {(1, 2): {"max_len": 3}}}, "unknown option 'max_len'"),
        ({"seq_orderin": 3}, "unknown option 'seq_orderin'. Did you mean 'seq_ordering'"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ConfigError, match=text):
        corpus(**{"path": "a.zip", **options})


def test_the_place_is_named_once(tmp_path):
    dataset = corpus(make_zip(tmp_path / "a.zip", wav2=tone(0)), name="train")
    with pytest.raises(DataError) as info:
        list(dataset.sequences(1))
    place = "dataset 'train', sequence 'corpus/2' (position 2 of epoch 1): audio file '%s:a/2.wav': " % (
        tmp_path / "a.zip"
    )
    assert str(info.value).startswith(place + "the audio is empty")


def test_a_subset_of_nothing(tmp_path):
    dataset = corpus(make_zip(tmp_path / "a.zip"), fixed_random_subset=0.1)
    with pytest.raises(ConfigError, match="'fixed_random_subset' is 0.1, which leaves none of 4 sequences"):
        list(dataset.sequences(1))


@pytest.mark.parametrize("name", ["content_name", "resolve_symlink_for_name", "use_cache_manager"])
def test_options_that_a_directory_does_not_have(name):
    options = {name: "plain" if name == "content_name" else True}
    with pytest.raises(ConfigError, match="option '%s' is for zip files, but .*plain' is a directory" % name):
        list(corpus(str(ROOT / "oggzip" / "plain"), **options).sequences(1))


def test_a_text_is_read_in_pieces_of_any_size():
    texts = ["it's %d \"é\\\n" % i for i in range(30)]
    given = [{"text": text, "duration": 0.7, "x": [None, (1, {"a": -2})], "file": "a"} for text in texts]
    content = ("  " + repr(given) + "\n ").encode()
    expected = [{key: entry[key] for key in ("text", "duration")} for entry in given]
    for size in (1, 3, 50, 10**6):
        pieces = [b"", *(content[start : start + size] for start in range(0, len(content), size)), b""]
        assert list(read_dicts(pieces, keys=("text", "duration"), where="x")) == expected


def _random_literal(rng):
    """Return a list of dicts whose layout may change, written in many ways, and perhaps damaged."""
    layouts = ["text duration file", "file x text seq_name duration", "text text duration", "duration text"]
    odd = {"duration": ["1.5", "2.", "-1.5", "3", "None", "1e5"], "text": ["'a\\n'", "u'x'", '"it\'s"', "'é'", "None"]}
    entries, layout = [], rng.choice(layouts)
    for number in range(rng.randrange(1, 12)):
        layout = rng.choice(layouts) if rng.random() < 0.1 else layout
        items = []
        for key in layout.split():
            value = "%.2f" % number if key == "duration" else repr("w%d" % number)
            value = rng.choice(odd.get(key, odd["text"])) if rng.random() < 0.2 else value
            items.append("%r%s: %s" % (key, rng.choice(["", "", " "]), value))
        entries.append("{%s%s}" % (", ".join(items), rng.choice(["", "", " ", ","])))
    joined = rng.choice([",", ", ", ",\n"]).join(entries)
    text = "[%s%s]%s" % (joined, rng.choice(["", "\n", ","]), rng.choice(["", "\n"]))
    if rng.random() < 0.2:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(["", "}", "'", "\\", ","]) + text[place + rng.randrange(3) :]
    return text.encode()


def _read_until_error(entries):
    found = []
    try:
        for entry in entries:
            columns = [value for value in entry.values() if isinstance(value, list)]
            found += [dict(zip(entry, row)) for row in zip(*columns)] if columns else [entry]
    except DataError as exc:
        found.append(str(exc))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_columns_have_what_single_entries_have(seed):
    """Up to the same error, however the text is cut."""
    rng = random.Random(seed)
    content, size = _random_literal(rng), rng.choice([1, 7, 50, 10**6])
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    options = {"keys": ("text", "duration", "file", "seq_name"), "where": "x"}
    assert _read_until_error(read_columns(pieces, **options)) == _read_until_error(read_dicts(pieces, **options))


def test_damaged_bytes_never_lead_to_other_errors(tmp_path):
    path = tmp_path / "a.zip"
    content = (ROOT / "oggzip2" / "partA.zip").read_bytes()
    rng = random.Random(1)
    failures = 0
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 4, 30])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            list(corpus(str(path), content_name="partA", targets=None, read_threads=1).sequences(1))
        except DataError:
            failures += 1
    assert failures > 20


@pytest.mark.parametrize("file", ["../secret.wav", "a/../../secret.wav", "/secret.wav"])
def test_files_outside_of_a_directory_are_refused(file, tmp_path):
    (tmp_path / "plain").mkdir()
    given = entries()
    given[1]["file"] = file
    (tmp_path / "plain.txt").write_text(repr(given))
    (tmp_path / "secret.wav").write_bytes(tone(0.1))
    dataset = corpus(str(tmp_path / "plain"))
    with pytest.raises(DataError, match="sequence 'corpus/1' .*'file' '%s' is not in the directory" % file):
        list(dataset.sequences(1, seq_order=[1]))
