"""``returnn-tf data oggzip``: corpora from tables and from Bliss files."""

from __future__ import annotations

import ast
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main

soundfile = pytest.importorskip("soundfile")
RATE = 8000


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Return a folder with three audio files: a.wav of 1 s, stereo.flac of 0.5 s at twice the rate, c.ogg of 0.25 s."""
    folder = tmp_path / "rec"
    folder.mkdir()
    soundfile.write(folder / "a.wav", np.concatenate([tone(0.5), tone(0.5, 1000)]), RATE)
    soundfile.write(folder / "stereo.flac", np.stack([tone(0.5, rate=2 * RATE)] * 2, axis=1), 2 * RATE)
    soundfile.write(folder / "c.ogg", tone(0.25), RATE)
    return folder


def made(path: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return the entries, and the content of the audio files."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    return ast.literal_eval(content.pop(path.stem + ".txt").decode("utf8")), content


def audio(content: bytes) -> tuple[np.ndarray, int]:
    return soundfile.read(io.BytesIO(content))


def strongest(samples: np.ndarray, rate: int) -> float:
    """Return the frequency with the most power."""
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * rate / len(samples))


def test_table(recordings, tmp_path, capsys):
    table = recordings / "list.tsv"
    rows = ["file\ttext\tspeaker_name", 'a.wav\tone  "two"\tann', "stereo.flac\tthree\tbob", "c.ogg\t\tann"]
    table.write_text("\n".join(rows) + "\n")
    path = tmp_path / "my.corpus.zip"
    assert main(["data", "oggzip", str(table), "--output", str(path), "--threads", "2"]) == 0
    assert capsys.readouterr().out == "wrote %s: 3 sequences, 1.75 seconds\n" % path
    entries, files = made(path)
    assert entries == [
        {"speaker_name": "ann", "text": 'one "two"', "seq_name": "a", "file": "a.ogg", "duration": 1.0},
        {"speaker_name": "bob", "text": "three", "seq_name": "stereo", "file": "stereo.ogg", "duration": 0.5},
        {"speaker_name": "ann", "text": "", "seq_name": "c", "file": "c.ogg", "duration": 0.25},
    ]
    assert list(files) == ["my.corpus/a.ogg", "my.corpus/stereo.ogg", "my.corpus/c.ogg"]
    assert files["my.corpus/c.ogg"] == (recordings / "c.ogg").read_bytes(), "not encoded again"
    samples, rate = audio(files["my.corpus/stereo.ogg"])
    assert samples.shape == (RATE, 2) and rate == 2 * RATE
    info = soundfile.info(io.BytesIO(files["my.corpus/a.ogg"]))
    assert (info.format, info.subtype) == ("OGG", "VORBIS")


@pytest.mark.slow
def test_parts_of_files_and_resampling(recordings, tmp_path):
    table = tmp_path / "list.csv"
    table.write_text('file,text,start,end,seq_name\na.wav,"x, y",0.5,0.9,s1\na.wav,z,,0.25,s2\nc.ogg,u,0.1,,\n')
    path = tmp_path / "out.zip"
    command = ["data", "oggzip", str(table), "--output", str(path), "--audio-root", str(recordings)]
    assert main([*command, "--sample-rate", "16000", "--format", "flac"]) == 0
    entries, files = made(path)
    assert [(e["seq_name"], e["file"], e["duration"], e["text"]) for e in entries] == [
        ("s1", "a/0.5_0.9.flac", 0.4, "x, y"),
        ("s2", "a/0_0.25.flac", 0.25, "z"),
        ("c/0.1_end", "c/0.1_end.flac", 0.15, "u"),
    ]
    for name, hertz in (("a/0.5_0.9", 1000), ("a/0_0.25", 440)):
        samples, rate = audio(files["out/%s.flac" % name])
        assert rate == 16000 and strongest(samples, rate) == pytest.approx(hertz, abs=2)


def test_bliss(recordings, tmp_path):
    corpus = recordings / "corpus.xml"
    corpus.write_text(
        """<corpus name="c"><recording name="r" audio="a.wav">
          <segment name="s" start="0.0" end="0.5"><speaker name="ann"/><orth> one
            two </orth></segment>
          <segment start="0.5" end="1.0"><orth>three</orth></segment></recording></corpus>"""
    )
    path = tmp_path / "out.zip"
    assert main(["data", "oggzip", str(corpus), "--output", str(path)]) == 0
    entries, files = made(path)
    assert [(e["text"], e["seq_name"], e["speaker_name"], e["file"]) for e in entries] == [
        ("one two", "c/r/s", "ann", "a/0.0_0.5.ogg"),
        ("three", "c/r/2", None, "a/0.5_1.0.ogg"),
    ]
    samples, rate = audio(files["out/a/0.5_1.0.ogg"])
    assert strongest(samples, rate) == pytest.approx(1000, abs=3)
    wanted = tmp_path / "segments"
    wanted.write_text("c/r/2\n")
    assert main(["data", "oggzip", str(corpus), "--output", str(path), "--segments", str(wanted)]) == 1
    command = ["data", "oggzip", str(corpus), "--output", str(path), "--segments", str(wanted), "--replace"]
    assert main([*command, "--no-audio"]) == 0
    entries, files = made(path)
    assert not files and entries == [{"speaker_name": None, "text": "three", "seq_name": "c/r/2", "duration": 0.0}]


def test_tracks_of_a_bliss_corpus(recordings, tmp_path, capsys):
    """A segment has its channel only; without a track it has all."""
    both = np.stack([tone(0.5), tone(0.5, 1000)], axis=1)
    soundfile.write(recordings / "call.wav", both, RATE)
    corpus, path = recordings / "corpus.xml", tmp_path / "out.zip"
    text = """<corpus name="c"><recording name="r" audio="call.wav"><segment name="a" track="0"/>
      <segment name="b" track="1"/><segment name="all"/></recording>%s</corpus>"""
    corpus.write_text(text % "")
    command = ["data", "oggzip", str(corpus), "--output", str(path), "--format", "wav"]
    assert main(command) == 0
    entries, files = made(path)
    found = [audio(files["out/" + entry["file"]])[0] for entry in entries]
    assert [samples.shape for samples in found] == [(RATE // 2,), (RATE // 2,), (RATE // 2, 2)]
    assert [strongest(samples, RATE) for samples in found[:2]] == [
        pytest.approx(440, abs=3),
        pytest.approx(1000, abs=3),
    ]
    corpus.write_text(text % '<recording name="m" audio="a.wav"><segment name="x" track="1"/></recording>')
    assert main([*command, "--replace"]) == 1
    assert "segment 'c/m/x': '%s/a.wav' has 1 channel, but no track 1" % recordings in capsys.readouterr().err


def test_the_same_input_gives_the_same_file(recordings, tmp_path):
    table = recordings / "list.tsv"
    table.write_text("file\ttext\na.wav\tone\nstereo.flac\ttwo\n")
    found = []
    for threads in ("1", "3"):
        path = tmp_path / threads / "x.zip"
        command = ["data", "oggzip", str(table), "--output", str(path), "--format", "flac"]
        assert main([*command, "--threads", threads]) == 0
        found.append(path.read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "content, message",
    [
        (
            "file\ttxt\na.wav\tone\n",
            "no column 'text'. Did you mean 'txt'? If it is called otherwise, add --columns text=COLUMN.",
        ),
        ("file\ttext\na.wav\n", "line 2: there are fewer entries than columns"),
        ("file\ttext\na.wav\tone\ttwo\n", "line 2: there are more entries than columns"),
        ("file\ttext\n\tone\n", "line 2: the column 'file' is empty"),
        ("file\ttext\n", "has no utterances"),
        ("", "there is no column 'file'"),
        ("file\ttext\na.wav\tone\na.wav\ttwo\n", "line 3: 'a' is also at"),
        ("file\ttext\nb.wav\tone\n", "/rec'; if it is in another one, add --audio-root FOLDER"),
        ("file\ttext\nb.wav\tone\n", "line 2: audio file 'b.wav' does not exist in the folder '/"),
        ("file\ttext\n/no/b.wav\tone\n", "line 2: audio file '/no/b.wav' does not exist\n"),
        ("file\ttext\nlist.tsv\tone\n", "cannot be decoded"),
        ("file\ttext\tstart\na.wav\tone\tx\n", "line 2: 'x' is not a time in seconds"),
        ("file\ttext\tstart\tend\na.wav\tone\t0.5\t0.5\n", "is not after the start"),
        ("file\ttext\tstart\na.wav\tone\t7\n", "starts at 7 s, but"),
        (b"file\ttext\na.wav\t\xff\n", "is damaged"),
    ],
)
def test_wrong_tables(content, message, recordings, tmp_path, capsys):
    table = recordings / "list.tsv"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    path = tmp_path / "x.zip"
    assert main(["data", "oggzip", str(table), "--output", str(path)]) == 1
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert not path.exists() and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("rate", [1, 100_000_000])
def test_sample_rates_that_no_recording_has(rate, tmp_path, capsys):
    """Resampling would need memory in proportion to their ratio."""
    soundfile.write(tmp_path / "odd.wav", tone(0.5), rate)
    (tmp_path / "list.tsv").write_text("file\ttext\nodd.wav\tone\n")
    arguments = ["data", "oggzip", str(tmp_path / "list.tsv"), "--output", str(tmp_path / "x.zip")]
    assert main([*arguments, "--sample-rate", "16000"]) == 1
    err = capsys.readouterr().err
    assert "list.tsv, line 2: the sample rate of" in err and "odd.wav' is %d Hz, too far from 16000 Hz" % rate in err
    assert not (tmp_path / "x.zip").exists()


COLUMNS = "wav,transcript,file,seq_name\na.wav,one,7,x\nc.ogg,two,8,y\n"


def test_names_of_columns(recordings, tmp_path):
    table, path = tmp_path / "list.csv", tmp_path / "x.zip"
    table.write_text(COLUMNS)
    columns = ["--columns", "file=wav, text = transcript", "--audio-root", str(recordings)]
    assert main(["data", "oggzip", str(table), "--output", str(path), *columns]) == 0
    entries, _ = made(path)
    assert [(e["seq_name"], e["text"], e["file"], e["file_3"]) for e in entries] == [
        ("x", "one", "a.ogg", "7"),
        ("y", "two", "c.ogg", "8"),
    ]


@pytest.mark.parametrize(
    "columns, code, message",
    [
        ("file=wav", 1, "no column 'text'. Known: file, seq_name, transcript, wav. If it"),
        ("file=wav,text=transcribt", 1, "no column 'transcribt'. Did you mean 'transcript'?"),
        ("file=wav,txt=transcript", 2, "with some of file, text, seq_name, start, end before the ="),
        ("file", 2, "must be like file=wav,text=transcript"),
        ("file=wav,file=transcript", 2, "names a column twice"),
        ("file=wav,text=wav", 2, "names a column twice"),
    ],
)
def test_wrong_names_of_columns(columns, code, message, tmp_path, capsys):
    table = tmp_path / "list.csv"
    table.write_text(COLUMNS)
    assert main(["data", "oggzip", str(table), "--output", str(tmp_path / "x.zip"), "--columns", columns]) == code
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_columns_of_a_corpus_without(recordings, tmp_path, capsys):
    path = tmp_path / "c.xml"
    path.write_text("<corpus name='c'></corpus>")
    assert main(["data", "oggzip", str(path), "--output", str(tmp_path / "x.zip"), "--columns", "file=wav"]) == 2
    assert "--columns is for tables (.tsv, .csv), which" in capsys.readouterr().err


def test_other_mistakes(recordings, tmp_path, capsys):
    table = recordings / "list.tsv"
    table.write_text("file\ttext\na.wav\tone\n")
    segments = tmp_path / "segments"
    segments.write_text("b\n")
    for arguments, code in (
        ([str(table), "--output", "x.tar"], 2),
        ([str(recordings / "a.wav"), "--output", "x.zip"], 1),
        ([str(table), "--output", "x.zip", "--segments", str(segments)], 1),
        ([str(table), "--output", "x.zip", "--quality", "2"], 2),
        ([str(recordings / "none.tsv"), "--output", "x.zip"], 1),
    ):
        assert main(["data", "oggzip", *arguments]) == code
    err = capsys.readouterr().err
    for words in ("must end in .zip", "neither a table", "1 of its sequences are not in the corpus", "can't be read"):
        assert words in err
    assert "argument --quality" in err and "Traceback" not in err
