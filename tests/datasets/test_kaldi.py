"""KaldiDataset: data directories with audio, and with matrices and vectors that kaldiio wrote."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.utterances import CHARS, RATE, RAW, SAMPLES, TEXTS, check, wav, write_files

TEXT = "".join("%s %s\n" % item for item in TEXTS.items())
FRAMES = {"one": 5, "two": 7, "three": 6}
MATRICES = {tag: np.random.RandomState(n).normal(size=(n, 3)).astype("float32") for tag, n in FRAMES.items()}
LABELS = {tag: np.arange(n, dtype="int32") for tag, n in FRAMES.items()}


@pytest.fixture
def kaldi(tmp_path, monkeypatch):
    """Work in a folder with data/train, a data directory; return a function that writes files there."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "wav")

    def write(folder="data/train", **files):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (tmp_path / folder / name.replace("__", ".")).write_text(content)

    write(wav__scp="".join("%s wav/%s.wav\n" % (tag, tag) for tag in TEXTS), text=TEXT)
    return write


@pytest.fixture
def arrays(kaldi):
    """Write archives with matrices and vectors, and return kaldiio."""
    kaldiio = pytest.importorskip("kaldiio", reason="archives of Kaldi are read with the extra 'kaldi'")
    for name, values in (("feats", MATRICES), ("ali", LABELS)):
        with kaldiio.WriteHelper("ark,scp:%s.ark,data/train/%s.scp" % (name, name)) as writer:
            for tag, value in values.items():
                writer(tag, value)
    return kaldiio


def open_(**options):
    given = {"class": "KaldiDataset", "name": "train", "path": "data/train", "audio": RAW, "targets": CHARS}
    return Dataset.from_config({**given, **options})


def of_arrays(**options):
    return open_(**{"audio": None, "arrays": {"data": "feats.scp", "ali": "ali.scp"}, **options})


def tags(dataset, **how):
    return [seq.tag for seq in dataset.sequences(1, **how)]


def test_audio_files(kaldi):
    check(open_())
    check(pickle.loads(pickle.dumps(open_())))
    assert tags(open_(seq_ordering="sorted_reverse")) == ["three", "two", "one"]  # by their headers
    assert tags(open_(), start=2) == ["three"]
    assert tags(open_(), seq_list=["two"]) == ["two"]


def test_other_directories(kaldi, tmp_path, monkeypatch):
    kaldi("more", wav__scp="x-one wav/one.wav\n", text="x-one eins\n")
    paths = [str(tmp_path / "data/train"), str(tmp_path / "more")]
    monkeypatch.chdir("/")
    check(open_(path=paths, root=str(tmp_path)), [*TEXTS, "x-one"])


def test_lines_in_another_order(kaldi):
    kaldi(text="".join(TEXT.splitlines(keepends=True)[::-1]), utt2dur="three 1\none 3\ntwo 2\n")
    check(open_())
    dataset = open_(seq_ordering="sorted")
    assert dataset.seq_lengths().tolist() == [300, 200, 100]
    assert tags(dataset) == ["three", "two", "one"]


def test_segments(kaldi):
    kaldi(segments="b three 0.25 0.5\na one 0.125 -1\nc two 0.0 0.25 0\n", text="a x\nb y z\nc w\n")
    dataset = open_()
    got = list(dataset.sequences(1))
    assert [seq.tag for seq in got] == ["b", "a", "c"]
    assert [seq.data["raw"].item() for seq in got] == ["y z", "x", "w"]
    for seq, part in zip(got, (SAMPLES["three"][2000:4000], SAMPLES["one"][1000:], SAMPLES["two"][:2000])):
        np.testing.assert_array_equal(seq.data["data"][:, 0], part)
    assert dataset.seq_lengths().tolist() == [25, 37, 25]


def test_channels(kaldi, tmp_path):
    stereo = np.stack([SAMPLES["one"], -SAMPLES["one"]], axis=1)
    (tmp_path / "wav/stereo.wav").write_bytes(wav(stereo))
    kaldi(wav__scp="r wav/stereo.wav\n", segments="a r 0 0.25 1\n", text="a x\n")
    (seq,) = open_(targets=None).sequences(1)
    np.testing.assert_array_equal(seq.data["data"][:, 0], -SAMPLES["one"][:2000])
    kaldi(segments="a r 0 0.25 2\n")
    with pytest.raises(DataError, match="sequence 'a' .*segments', line 1: .*has 2 channels, but no track 2"):
        list(open_(targets=None).sequences(1))


def test_commands_run_only_if_wanted(kaldi, tmp_path):
    kaldi(wav__scp="".join("%s echo >> ran; cat wav/%s.wav |\n" % (tag, tag) for tag in TEXTS))
    with pytest.raises(DataError, match="wav.scp', line 1: 'echo .*is a command, .* not executed. Set run_pipes=True"):
        list(open_().sequences(1))
    assert not (tmp_path / "ran").exists()
    check(open_(run_pipes=True))
    kaldi(segments="a three 0.25 0.5\n", text="a x\n")
    (seq,) = open_(run_pipes=True).sequences(1)
    np.testing.assert_array_equal(seq.data["data"][:, 0], SAMPLES["three"][2000:4000])


@pytest.mark.parametrize(
    "command", ["echo oh >&2; exit 3 |", "cat wav/one.wav | (cat >/dev/null; echo oh >&2; exit 3) |"]
)
def test_a_command_that_fails(kaldi, command):
    kaldi(wav__scp="one %s\n" % command)
    with pytest.raises(DataError, match="sequence 'one' .*wav.scp', line 1: the command .* ends with code 3: oh"):
        list(open_(run_pipes=True).sequences(1))


def test_matrices_and_vectors(arrays):
    dataset = of_arrays()
    assert dataset.num_outputs["data"] == (3, 2) and dataset.num_inputs == 3
    assert dataset.data_specs["ali"].sparse and dataset.data_specs["ali"].dtype == "int32"
    got = list(dataset.sequences(1))
    assert [seq.tag for seq in got] == list(TEXTS)
    for seq in got:
        np.testing.assert_array_equal(seq.data["data"], MATRICES[seq.tag])
        np.testing.assert_array_equal(seq.data["ali"], LABELS[seq.tag])
        assert seq.data["raw"].item() == TEXTS[seq.tag]
    assert [seq.data["data"].shape for seq in of_arrays(window=3).sequences(1)] == [(n, 9) for n in FRAMES.values()]


@pytest.mark.parametrize("how", ["compressed", "text", "double"])
def test_forms_of_matrices(arrays, how):
    options = {"compression_method": 2} if how == "compressed" else {"text": how == "text"}
    with arrays.WriteHelper("ark%s,scp:f.ark,data/train/feats.scp" % (",t" if how == "text" else ""), **{
        name: value for name, value in options.items() if name != "text"
    }) as writer:  # fmt: skip
        for tag, value in MATRICES.items():
            writer(tag, value.astype("float64") if how == "double" else value)
    for seq in of_arrays().sequences(1):
        np.testing.assert_allclose(seq.data["data"], MATRICES[seq.tag], atol=0.02 if how == "compressed" else 1e-6)


def test_ranges_of_matrices(arrays, tmp_path):
    scp = tmp_path / "data/train/feats.scp"
    scp.write_text("".join(line + "[1:3,0:1]\n" for line in scp.read_text().split("\n") if line))
    for seq in of_arrays(arrays={"data": "feats.scp"}).sequences(1):
        np.testing.assert_array_equal(seq.data["data"], MATRICES[seq.tag][1:4, :2])


def test_lengths_of_matrices(arrays, kaldi):
    with pytest.raises(DataError, match="has neither 'utt2dur' nor 'utt2num_frames', by which to order"):
        tags(of_arrays(seq_ordering="sorted"))
    kaldi(utt2num_frames="".join("%s %d\n" % item for item in FRAMES.items()))
    assert tags(of_arrays(seq_ordering="sorted")) == ["one", "three", "two"]
    assert of_arrays().seq_lengths().tolist() == [5, 7, 6]


def test_audio_in_archives(arrays):
    with arrays.WriteHelper("ark,scp:wav.ark,data/train/wav.scp") as writer:
        for tag, samples in SAMPLES.items():
            writer(tag, (RATE, np.int16(samples * 32768)))
    check(open_())


def test_audio_beside_alignments(arrays):
    dataset = open_(arrays={"ali": "ali.scp"})
    check(dataset)
    assert [len(seq.data["ali"]) for seq in dataset.sequences(1)] == list(FRAMES.values())


def _damage(tmp_path, how):
    path = tmp_path / "feats.ark"
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[:-10])
    elif how == "garbage":
        path.write_bytes(content[: content.index(b"three ") + 6] + b"\0BXX" + bytes(300))
    elif how == "pickle":
        path.write_bytes(content[: content.index(b"three ") + 6] + b"PKL" + pickle.dumps(MATRICES["three"]))
    else:
        path.unlink()


@pytest.mark.parametrize(
    "how, text",
    [
        ("cut", "there is no matrix or vector that can be read.*Is the archive damaged or cut off"),
        ("garbage", "there is no matrix or vector that can be read"),
        ("pickle", "it is a pickle, which could run any program"),
    ],
)
def test_damaged_archives(arrays, tmp_path, how, text):
    _damage(tmp_path, how)
    place = "sequence 'three' .position 2 of epoch 1.: file '.*feats.scp', line 3: archive 'feats.ark', byte [0-9]+: "
    with pytest.raises(DataError, match="dataset 'train', " + place + text):
        list(of_arrays().sequences(1))


def test_a_vector_that_is_cut_off(arrays, tmp_path):
    with arrays.WriteHelper("ark,scp:v.ark,data/train/v.scp") as writer:
        for tag, value in MATRICES.items():
            writer(tag, value[:, 0])
    (tmp_path / "v.ark").write_bytes((tmp_path / "v.ark").read_bytes()[:-4])
    with pytest.raises(DataError, match="'three' .*v.scp', line 3: .*a vector has 5 values there, but declares 6"):
        list(of_arrays(arrays={"v": "v.scp"}).sequences(1))


BAD = {
    "no directory": ({}, {"path": "gone"}, "option 'path': 'gone' is no directory .current directory: "),
    "one of two": ({}, {"path": ["data/train", "gone"]}, "option 'path': 'gone' is no directory"),
    "texts of none": ({}, {"path": "gone", "audio": None, "targets": None}, "option 'path': 'gone' is no directory"),
    "a file": ({}, {"path": "data/train/text"}, "option 'path': 'data/train/text' is no directory"),
    "another": ({}, {"path": "wav"}, "option 'path': file 'wav/wav.scp' does not exist"),
    "no wav": ({"wav__scp": ""}, {}, "text file 'data/train/wav.scp' is empty"),
    "no path": ({"wav__scp": "one\n"}, {}, "'one' .*line 1: the audio file is missing behind the name in .*wav.scp'"),
    "no audio": (
        {"wav__scp": "one wav/gone.wav\n"},
        {},
        "'one' .*wav.scp', line 1: audio file 'wav/gone.wav' does not",
    ),
    "twice": ({"wav__scp": "one a\ntwo b\none c\n"}, {}, "wav.scp', line 3: 'one' has a line before"),
    "blank": ({"wav__scp": "one a\n \n"}, {}, "wav.scp', line 2: it is blank"),
    "no text": ({"text": "two x\n"}, {}, "file 'data/train/text' lacks 2 of the 3 names of .*wav.scp', e.g. 'one'"),
    "recording": ({"segments": "a four 0 1\n"}, {}, "wav.scp' lacks 1 of the 1 names of .*segments', e.g. 'four'"),
    "segment": ({"segments": "a one 0\n"}, {}, "segments', line 1: 'one 0' must be a recording, its start, its end"),
    "start": ({"segments": "a one x 1\n"}, {}, "segments', line 1: 'x' is no number of at least 0"),
    "order": ({"segments": "a one 2 1\n"}, {}, "segments', line 1: it ends at 1, before it starts at 2"),
    "beyond": (
        {"segments": "a one 0.25 1.5\n", "text": "a x\n"},
        {},
        "sequence 'a' .*segments', line 1: audio file 'wav/one.wav' has 0.500 s, but the segment is from 0.25 to 1.5 s",
    ),
    "duration": (
        {"utt2dur": "one 1\ntwo x\nthree 2\n"},
        {"seq_ordering": "sorted"},
        "utt2dur', line 2: 'x' is no number",
    ),
    "rate": (
        {},
        {"audio": {**RAW, "sample_rate": 16000}},
        "'one' .*wav.scp', line 1: audio file 'wav/one.wav': .*16000",
    ),
    "no scp": ({}, {"arrays": {"ali": "gone.scp"}}, "option 'arrays': file 'data/train/gone.scp' does not exist"),
}


@pytest.mark.parametrize("files, options, text", BAD.values(), ids=list(BAD))
def test_bad_directories(kaldi, files, options, text):
    kaldi(**files)
    with pytest.raises(DataError, match="^dataset 'train'.*" + text):
        list(open_(**options).sequences(1))


def test_a_missing_archive(kaldi):
    pytest.importorskip("kaldiio", reason="archives of Kaldi are read with the extra 'kaldi'")
    kaldi(feats__scp="one gone.ark:4\n")
    with pytest.raises(
        DataError, match="option 'arrays': file .*feats.scp', line 1: archive 'gone.ark' does not exist"
    ):
        of_arrays(arrays={"data": "feats.scp"})
    kaldi(feats__scp="one feats.ark:4\ntwo\n")
    with pytest.raises(
        DataError, match="option 'arrays': file .*feats.scp', line 1: archive 'feats.ark' does not exist"
    ):
        of_arrays(arrays={"data": "feats.scp"})
    kaldi(feats__scp="one copy-feats a.ark - |\n")
    with pytest.raises(DataError, match="feats.scp', line 1: 'copy-feats .*is a command; only those for audio are run"):
        of_arrays(arrays={"data": "feats.scp"})


def test_without_text(kaldi, tmp_path):
    (tmp_path / "data/train/text").unlink()
    dataset = open_(targets=None)
    assert dataset.data_keys == ["data"] and tags(dataset) == list(TEXTS)
    with pytest.raises(DataError, match="option 'path': file 'data/train/text' does not exist"):
        tags(open_())


@pytest.mark.parametrize("paths", [["data/train", "more"], ["more", "data/train"]], ids=["first", "second"])
def test_text_in_one_directory_of_two(kaldi, paths):
    kaldi("more", wav__scp="x-one wav/one.wav\n")
    dataset = open_(path=paths, targets=None)
    assert dataset.data_keys == ["data", "orth", "raw"]
    assert len([dataset.read(index, 1, ["data"]) for index in range(dataset.num_seqs)]) == 4
    with pytest.raises(
        DataError, match="sequence 'x-one' .*more/wav.scp', line 1: directory 'more' has no file 'text'"
    ):
        list(dataset.sequences(1))


def test_neither_audio_nor_text(kaldi, tmp_path):
    (tmp_path / "data/train/text").unlink()
    with pytest.raises(ConfigError, match="there is no data key: the corpus has no texts, and the option 'audio' is"):
        open_(audio=None, targets=None)


def test_a_name_without_archive(arrays, tmp_path):
    scp = tmp_path / "data/train/feats.scp"
    scp.write_text(scp.read_text().replace(scp.read_text().split()[3], ""))
    with pytest.raises(DataError, match="'two' .*feats.scp', line 2: the place of its data is missing behind the name"):
        tags(of_arrays())


def test_text_of_some(kaldi):
    kaldi(text="two x\n")
    dataset = open_(targets=None)
    with pytest.raises(DataError, match="sequence 'one' .*file 'data/train/text' has no line for it"):
        list(dataset.sequences(1))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"arrays": {"data": "feats.scp"}}, "the key 'data' is that of the option 'audio'"),
        ({"arrays": {"classes": "ali.scp"}}, "the key 'classes' is that of the option 'targets'"),
        ({"arrays": {"raw": "ali.scp"}}, "the key 'raw' is that of the text"),
        ({"arrays": {"ali": 3}}, "must map data keys to names, not 'ali' to 3"),
    ],
)
def test_wrong_options(kaldi, options, text):
    with pytest.raises(ConfigError, match="^dataset 'train'.*option 'arrays'.*" + text):
        open_(**options)
