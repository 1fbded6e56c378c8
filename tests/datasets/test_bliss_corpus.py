"""Bliss corpora: names, transcriptions, times, included files, and files which are something else."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets.text.bliss import is_bliss, read_bliss

CORPUS = """<?xml version="1.0" encoding="utf-8"?>
<corpus name="c">
 <speaker-description name="anna"><gender>female</gender></speaker-description>
 <recording name="r1" audio="audio/r1.wav">
  <segment name="s0" start="0.0" end="1.50"><speaker name="anna"/><orth>
   the   small boat
  </orth></segment>
  <segment start="1.5" track="1"><orth>Zoë <noise/>sings</orth></segment>
  <segment end="inf"/>
 </recording>
 <subcorpus name="sub">
  <recording audio="/a/b.flac"><segment name="x" start="2" end="3"><orth/></segment></recording>
  <recording><segment><orth>y</orth></segment></recording>
 </subcorpus>
 <include file="more.xml"/>
 <recording name="r9"><segment><orth>after</orth></segment></recording>
</corpus>
"""
MORE = "<corpus name='ignored'><recording name='m'><segment name='1'><orth>more</orth></segment></recording></corpus>"


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus.xml").write_text(CORPUS, encoding="utf8")
    (tmp_path / "more.xml").write_text(MORE, encoding="utf8")
    return str(tmp_path / "corpus.xml")


def test_segments(corpus):
    segments = list(read_bliss(corpus))
    assert [(s.name, s.text) for s in segments] == [
        ("c/r1/s0", "the small boat"),
        ("c/r1/2", "Zoë sings"),
        ("c/r1/3", ""),
        ("c/sub/1/x", ""),
        ("c/sub/2/1", "y"),
        ("c/m/1", "more"),
        ("c/r9/1", "after"),
    ]
    assert [s.audio for s in segments] == ["audio/r1.wav"] * 3 + ["/a/b.flac"] + [None] * 3
    assert [(s.start, s.end) for s in segments[:4]] == [("0.0", "1.50"), ("1.5", None), (None, "inf"), ("2", "3")]
    assert [s.seconds for s in segments[:4]] == [(0.0, 1.5), (1.5, None), (0.0, None), (2.0, 3.0)]
    assert [(s.speaker, s.track) for s in segments[:3]] == [("anna", None), (None, 1), (None, None)]
    assert segments[0].orth == "\n   the   small boat\n  " and segments[2].orth is None


def test_packed_whatever_its_name(corpus, tmp_path):
    for name in ("corpus.xml.gz", "packed.xml"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(CORPUS.encode()))
        assert is_bliss(str(path)) and len(list(read_bliss(str(path)))) == 7


@pytest.mark.parametrize("name, encoding", [("utf8", "utf8"), ("UTF8", "utf-8-sig"), ("euc_jp", "euc_jp")])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_encodings_by_other_names(name, encoding, pack, tmp_path):
    """Job managers write ``encoding="utf8"``, a name that the parser itself does not know."""
    path = tmp_path / "corpus.xml"
    text = CORPUS.replace('encoding="utf-8"', 'encoding="%s"' % name).replace("Zoë", "ぞえ")
    path.write_bytes(pack(text.encode(encoding)))
    (tmp_path / "more.xml").write_text(MORE)
    assert is_bliss(str(path)) and [s.text for s in read_bliss(str(path))][1] == "ぞえ sings"


@pytest.mark.parametrize(
    "text, expected",
    [(CORPUS, True), ("<corpus/>", True), ("<lexicon/>", False), ("plain text", False), ("", False), ("<a", False)],
)
def test_is_bliss(text, expected, tmp_path):
    (tmp_path / "file").write_text(text, encoding="utf8")
    assert is_bliss(str(tmp_path / "file")) is expected


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(recordings):
        path = tmp_path / "big.xml"
        segments = "".join(
            "<segment start='%d' end='%d'><orth> a b c </orth></segment>\n" % (i, i + 1) for i in range(9)
        )
        with open(path, "w") as file:
            file.write("<corpus name='c'>")
            for number in range(recordings):
                file.write("<recording name='r%d' audio='a.wav'>\n%s</recording>\n" % (number, segments))
            file.write("</corpus>")
        tracemalloc.start()
        count = sum(1 for _ in read_bliss(str(path)))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 9 * recordings
        return size

    assert peak(800) < 1.5 * peak(200)


@pytest.mark.parametrize(
    "text, message",
    [
        ("<corpus name='c'><recording>", "no element found"),
        ("<lexicon/>", "its root element is <lexicon>, not <corpus>"),
        ("hello", "syntax error"),
        ("<?xml version='1.0' encoding='utf-9'?><corpus/>", "encoding 'utf-9', which is unknown"),
        ("<?xml version='1.0' encoding='ascii'?><corpus name='ö'/>", "'ascii' codec can't decode byte"),
        ("<corpus><include/></corpus>", "<include> has no attribute 'file'"),
        ("<corpus><include file='bad.xml'/></corpus>", "include each other"),
        ("<corpus><include file='nowhere.xml'/></corpus>", "nowhere.xml' cannot be read: No such file"),
        ("<corpus><recording><segment track='x'/></recording></corpus>", "track 'x' is not a number"),
        ("\x1f\x8bdamaged", "cannot be read"),
    ],
)
def test_bad_files(text, message, tmp_path):
    path = tmp_path / "bad.xml"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(DataError, match=message):
        list(read_bliss(str(path)))


def test_directory_and_missing(tmp_path):
    for path in (tmp_path, tmp_path / "no.xml"):
        with pytest.raises(DataError, match="%s' cannot be read" % path):
            list(read_bliss(str(path)))


@pytest.mark.parametrize(
    "times, message",
    [
        ("start='1' end='x'", "end 'x' is not a time"),
        ("start='-1'", "start '-1'"),
        ("start='2' end='1'", "before it starts"),
    ],
)
def test_bad_times(times, message, tmp_path):
    path = tmp_path / "bad.xml"
    path.write_text("<corpus><recording name='r'><segment %s/></recording></corpus>" % times)
    (segment,) = read_bliss(str(path))
    with pytest.raises(DataError, match="segment '1/r/1'.*%s" % message):
        print(segment.seconds)
