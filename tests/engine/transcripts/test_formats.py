"""The formats of transcripts, read by independent programs where there are any."""

from __future__ import annotations

import io
import json

import pytest

from returnn_tf.config.errors import DataError
from returnn_tf.engine.transcripts.formats.base import FORMATS
from returnn_tf.engine.transcripts.transcript import Hypothesis, Piece, Transcript, text

WORDS = (Piece("seven", 0.37, 0.6104, 0.981), Piece("two", 0.6104, 0.9, 0.5))
LABELS = (Piece("sev@@", 0.37, 0.5), Piece("en", 0.5, 0.6104), Piece("two", 0.6104, 0.9))
BEST = Hypothesis(LABELS, WORDS, -4.61, {"acoustic": -3.21, "lm": -1.4})
SECOND = Hypothesis(LABELS[:2], WORDS[:1], -6.0)
ONE = Transcript("dev-1", (BEST, SECOND), 1.25)
EMPTY = Transcript("dev-2", (Hypothesis((), (), float("-inf")),), 0.5)
UNTIMED = Transcript("dev-3", (Hypothesis((Piece("a"),), (Piece("a"),)),))


def written(name, *transcripts):
    file = io.StringIO()
    FORMATS[name].write(transcripts, file)
    return file.getvalue()


def renamed(tag="dev-1", word="seven"):
    return Transcript(tag, (Hypothesis((), (Piece(word, 0.0, 1.0),)),), 1.0)


def test_txt():
    assert written("txt", ONE, EMPTY) == "seven two\n\n"


def test_ctm():
    """NIST's definition: file, channel, begin, duration, word and confidence; begin + duration is the next begin."""
    assert written("ctm", ONE, EMPTY) == "dev-1 1 0.370 0.240 seven 0.981\ndev-1 1 0.610 0.290 two 0.500\n"


def test_ctm_without_confidence():
    assert written("ctm", renamed()) == "dev-1 1 0.000 1.000 seven\n"


def test_srt():
    assert written("srt", ONE) == "1\n00:00:00,370 --> 00:00:00,900\nseven two\n\n"


def test_srt_begins_a_subtitle_at_a_pause_and_before_it_gets_too_long():
    words = [Piece("w%02d" % i, float(i), i + 0.9) for i in range(9)]
    words += [Piece("x" * 30, 3600.0, 3600.5), Piece("y" * 30, 3600.5, 3601.0), Piece("z", 3601.5, 3602.0)]
    lines = written("srt", Transcript("a", (Hypothesis((), tuple(words)),))).split("\n")
    assert lines[2::4] == [
        "w00 w01 w02 w03 w04 w05",
        "w06 w07 w08",
        "x" * 30,
        "y" * 30,
        "z",
    ]
    assert lines[9] == "01:00:00,000 --> 01:00:00,500"


def test_textgrid_covers_the_audio():
    content = written("textgrid", ONE)
    assert 'class = "IntervalTier"\n        name = "labels"' in content
    words = content[: content.index('name = "labels"')]
    intervals = [line.split(" = ")[1] for line in words.splitlines() if line.startswith("            ")]
    assert intervals[0::3] == ["0.000000", "0.370000", "0.610400", "0.900000"]
    assert intervals[1::3] == ["0.370000", "0.610400", "0.900000", "1.250000"]
    assert intervals[2::3] == ['""', '"seven"', '"two"', '""']
    assert 'text = "a ""b"""' in written("textgrid", renamed(word='a "b"'))


def test_jsonl():
    first, second = map(json.loads, written("jsonl", ONE, EMPTY).splitlines())
    assert first["tag"] == "dev-1" and first["duration"] == 1.25 and first["text"] == "seven two"
    assert first["score"] == -4.61 and first["parts"] == {"acoustic": -3.21, "lm": -1.4}
    assert first["words"][0] == {"text": "seven", "start": 0.37, "end": 0.61, "confidence": 0.981}
    assert first["labels"][0] == {"text": "sev@@", "start": 0.37, "end": 0.5}
    assert [entry["text"] for entry in first["alternatives"]] == ["seven"]
    assert second == {"tag": "dev-2", "duration": 0.5, "text": "", "words": [], "labels": []}  # JSON has no infinity


def test_nbest():
    assert written("nbest", ONE) == (
        "dev-1 ||| seven two ||| acoustic= -3.21 lm= -1.4 ||| -4.61\ndev-1 ||| seven |||  ||| -6\n"
    )


@pytest.mark.parametrize(
    "name, transcript, message",
    [
        ("ctm", UNTIMED, "'dev-3': 'a' has no time"),
        ("srt", UNTIMED, "has no time"),
        ("textgrid", UNTIMED, "has no time"),
        ("ctm", renamed(tag="dev 1"), "the tag 'dev 1' can't be written"),
        ("nbest", renamed(tag="dev\n1"), "the tag .* can't be written"),
        ("nbest", renamed(word="|||"), r"has '\|\|\|'"),
        ("textgrid", Transcript("e", (Hypothesis((), ()),)), "the duration is unknown"),
    ],
)
def test_what_can_not_be_written(name, transcript, message):
    with pytest.raises(DataError, match=message):
        written(name, transcript)


@pytest.mark.parametrize("name", [name for name, entry in FORMATS.items() if entry.of_one])
def test_formats_of_one_transcript(name):
    with pytest.raises(DataError, match="'dev-1' and 'dev-2' can't be in one file"):
        written(name, ONE, EMPTY)


def test_a_transcript_is_written_before_the_next_one_is_there():
    file = io.StringIO()

    def results():
        yield ONE
        assert file.getvalue() == "seven two\n"
        yield EMPTY

    FORMATS["txt"].write(results(), file)


def test_a_file_for_each_transcript(tmp_path):
    folder = tmp_path / "found"
    count = FORMATS["srt"].write_files([ONE, Transcript("a/b", (BEST,), 1.0)], str(folder))
    assert count == 2 and sorted(path.name for path in folder.iterdir()) == ["a_b.srt", "dev-1.srt"]
    assert (folder / "dev-1.srt").read_text() == written("srt", ONE)
    with pytest.raises(DataError, match="'a/b' and 'a_b' have the same file 'a_b.srt'"):
        FORMATS["srt"].write_files([Transcript(tag, (BEST,), 1.0) for tag in ("a/b", "a_b")], str(tmp_path / "x"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="can't be written"):
        FORMATS["srt"].write_files([ONE], str(tmp_path / "file" / "x"))


def test_text():
    assert text(BEST) == "seven two"
