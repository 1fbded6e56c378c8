"""``tools/bliss-to-ogg-zip.py``: corpora that OggZipDataset reads, and that jobs merge."""

from __future__ import annotations

import ast
import io
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.datasets import Dataset
from returnn_tf.rasr.datasets.entries import Features
from tests.rasr.archives import ArchiveWriter, encode_features

soundfile = pytest.importorskip("soundfile")
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
RATE = 8000
CORPUS = """<?xml version="1.0" encoding="utf8"?>
<corpus name="c">
  <speaker-description name="ann"/>
  <subcorpus name="sub">
    <recording name="r1" audio="rec/one/a.%(suffix)s">
      <speaker name="not of the segment"/>
      <segment name="s1" start="0.00" end="0.30"><speaker name="ann"/><orth>
        one   two </orth></segment>
      <segment start="0.3" end="1.0"><orth>three</orth></segment>
    </recording>
  </subcorpus>
  <recording audio="rec/b.%(suffix)s"><segment start="0.1" end="0.25"><orth/></segment></recording>
</corpus>
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Return a corpus with two recordings, of a low and then a high tone; and as Ogg, without cuts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    os.makedirs("data/rec/one")
    times = np.arange(RATE) / RATE
    tones = 0.5 * np.sin(2 * np.pi * np.where(times < 0.3, 440, 1000) * times)
    for name in ("one/a", "b"):
        soundfile.write("data/rec/%s.wav" % name, tones, RATE)
    Path("data/c.xml").write_text(CORPUS % {"suffix": "wav"})
    return tmp_path


def convert(*args, corpus="data/c.xml", output="x.y.zip"):
    return main(["tool", "bliss-to-ogg-zip", corpus, "--output", output, *args])


def made(path="x.y.zip"):
    """Return lines of the text, and content of the audio files."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
        assert len(content) == len(archive.namelist())
    lines = content.pop(Path(path).stem + ".txt").decode("utf8").splitlines()
    assert (lines[0], lines[-1]) == ("[", "]") and all(line.endswith(",") for line in lines[1:-1])
    return [ast.literal_eval(line)[0] for line in lines[1:-1]], content


def tone(content, start=0.0):
    samples, rate = soundfile.read(io.BytesIO(content))
    samples = samples[round(start * rate) :]
    return len(samples) / rate, float(np.argmax(np.abs(np.fft.rfft(samples))) * rate / len(samples))


@needs_ffmpeg
@pytest.mark.parametrize("threads", [None, "1"])
def test_conversion(threads, monkeypatch):
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert convert() == 0
    entries, audio = made()
    assert entries == [
        {"text": text, "speaker_name": speaker, "seq_name": name, "file": file, "duration": duration}
        for text, speaker, name, file, duration in (
            ("one two", "ann", "c/sub/r1/s1", "one/a/0.00_0.30.ogg", 0.3),
            ("three", None, "c/sub/r1/2", "one/a/0.3_1.0.ogg", 0.7),
            ("", None, "c/1/1", "b/0.1_0.25.ogg", 0.15),
        )
    ]
    assert list(audio) == ["x.y/" + entry["file"] for entry in entries]
    for content, entry, hertz in zip(audio.values(), entries, (440, 1000, 440)):
        seconds, found = tone(content)
        assert seconds == pytest.approx(entry["duration"], abs=1e-3) and found == pytest.approx(hertz, abs=4)
    options = {"class": "OggZipDataset", "path": "x.y.zip", "audio": {"features": "raw"}, "targets": None}
    sequences = list(Dataset.from_config(options).sequences())
    assert [seq.tag for seq in sequences] == [entry["seq_name"] for entry in entries]
    assert [len(seq.data["data"]) for seq in sequences] == [2400, 5600, 1200]
    assert str(sequences[0].data["raw"]) == "one two"
    assert {path.name for path in Path().iterdir()} == {"data", "x.y.zip"}


@needs_ffmpeg
def test_parts_and_options():
    """A subset, appended to a zip with something else; other rate and channels; the files are kept."""
    Path("segments").write_text("c/1/1\n")
    with zipfile.ZipFile("x.y.zip", "w") as archive:
        archive.writestr("other.txt", "[]")
    options = ["--ffmpeg_resample", "16000", "--number_of_channels", "2", "--ffmpeg_acodec", "libvorbis"]
    assert convert("--subset_segment_file", "segments", "--no_cleanup", *options) == 0
    entries, audio = made()
    assert [entry["seq_name"] for entry in entries] == ["c/1/1"] and audio.pop("other.txt") == b"[]"
    info = soundfile.info(io.BytesIO(audio["x.y/b/0.1_0.25.ogg"]))
    assert (info.samplerate, info.channels, info.subtype) == (16000, 2, "VORBIS")
    assert [path.name for path in Path().glob(".x.y.zip*/*")] == ["b_0.1_0.25.ogg"]
    assert convert("--subset_segment_file", "segments") == 1  # it is there already


def test_without_audio(capsys):
    assert convert("--no_ogg", "--ffmpeg_acodec", "flac") == 0
    assert "have no effect" in capsys.readouterr().out
    entries, audio = made()
    assert [entry["duration"] for entry in entries] == [0.3, 0.7, 0.15] and list(audio) == ["x.y/"]
    options = {"class": "OggZipDataset", "path": "x.y.zip", "audio": None, "targets": None}
    assert next(seq.tag for seq in Dataset.from_config(options).sequences()) == "c/sub/r1/s1"


def test_copies(monkeypatch):
    """Whole Ogg files, found from the working directory, where the corpus has no end: not encoded again."""
    os.makedirs("rec")
    soundfile.write("rec/b.ogg", np.zeros(RATE), RATE)
    Path("data/c.xml").write_text(
        '<corpus name="c"><recording name="r" audio="rec/b.ogg"><segment><orth>x</orth></segment></recording></corpus>'
    )
    assert convert("--no_conversion") == 0
    entries, audio = made()
    assert entries[0]["duration"] == 1.0 and audio == {"x.y/b/0_end.ogg": Path("rec/b.ogg").read_bytes()}


@needs_ffmpeg
def test_archives_of_rasr():
    """Frames of the signal in the range of 16 bits."""
    times = np.arange(2400) / RATE
    frames = (2.0**14 * np.sin(2 * np.pi * 440 * times)).astype("float32").reshape(-1, 80)
    moments = np.stack([np.arange(30), np.arange(1, 31)], axis=1) / 100
    with ArchiveWriter("a.cache") as archive:
        for name in ("c/sub/r1/s1", "c/sub/r1/2", "c/1/1"):
            archive.add(name, encode_features(Features(frames, moments)))
    assert convert("--sprint_cache", "a.cache") == 0
    entries, audio = made()
    assert [entry["duration"] for entry in entries] == [0.3] * 3
    samples, rate = soundfile.read(io.BytesIO(audio["x.y/one/a/0.00_0.30.ogg"]))
    assert rate == RATE and np.abs(samples).max() == pytest.approx(0.5, abs=0.05)
    assert tone(audio["x.y/one/a/0.00_0.30.ogg"])[1] == pytest.approx(440, abs=4)
    os.remove("x.y.zip")
    assert convert("--sprint_cache", "a.cache", "--raw_sample_rate", "16000") == 1


@pytest.mark.parametrize(
    "args, code, message",
    [
        (["--output", "x.ogg"], 2, "must end in .zip"),
        (["--subset_segment_file", "segments"], 1, "Did you mean 'c/1/1'?"),
        (["--no_conversion"], 1, "is no .ogg file, so it needs a conversion"),
        (["--no_conversion", "--sprint_cache", "x"], 2, "audio of --sprint_cache needs a conversion"),
        (["--sprint_cache", "none"], 1, "'none'"),
        (["--sprint_cache", "none", "--feat_sample_rate", "99"], 2, "must be a multiple"),
        (["--no_oggs"], 2, "Did you mean '--no_ogg'?"),
        (["--output", "/dev/null/x.zip"], 1, "can't be written"),
        (["--ffmpeg_acodec", "none"], 1, "ffmpeg can't convert 'data/rec/one/a.wav'"),
    ],
)
@needs_ffmpeg
def test_mistakes(args, code, message, capsys):
    Path("segments").write_text("c/1/2\n")
    assert convert(*args) == code
    error = capsys.readouterr().err
    assert message in error and error.partition("\nMore: ")[0].strip().count("\n") == 0
    assert {path.name for path in Path().iterdir()} == {"data", "segments"}


@pytest.mark.parametrize(
    "corpus, message",
    [
        ("<corpus><recording name='r'><segment/></recording></corpus>", "has no audio file"),
        ("<corpus><recording name='r' audio='x.wav'><segment/></recording></corpus>", "x.wav' can't be read: No such"),
        ("<corpus/>", "has no utterances"),
        ("<lexicon/>", "neither a table"),
    ],
)
@needs_ffmpeg
def test_wrong_corpora(corpus, message, capsys):
    Path("data/c.xml").write_text(corpus)
    assert convert() == 1
    assert message in capsys.readouterr().err and not os.path.exists("x.y.zip")


def test_without_ffmpeg(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert convert() == 1
    assert "ffmpeg is not installed" in capsys.readouterr().err
    Path("x.y.zip").write_text("no zip")
    assert convert("--no_ogg") == 1
    assert "is no zip" in capsys.readouterr().err and Path("x.y.zip").read_text() == "no zip"
