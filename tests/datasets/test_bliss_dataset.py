"""BlissDataset: segments of audio files, with labels; and corpora that do not fit their audio."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import soundfile

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset

RATE = 8000
LEFT = np.random.RandomState(1).uniform(-0.5, 0.5, 2 * RATE).astype("float32")
RIGHT = np.random.RandomState(2).uniform(-0.5, 0.5, 2 * RATE).astype("float32")
RAW = {"features": "raw", "peak_normalization": False}

CORPUS = """<corpus name="c">
 <recording name="mono" audio="mono.wav">
  <segment name="a" start="0.25" end="0.5"><orth> yes  no </orth></segment>
  <segment name="b" start="0.5"><orth>no</orth></segment>
 </recording>
 <recording name="stereo" audio="sub/stereo.wav">
  <segment start="1" end="1.5" track="1"><orth>maybe</orth></segment>
 </recording>
 %s
</corpus>"""


@pytest.fixture
def corpus(tmp_path):
    """Write a corpus with a further recording; return a function that makes its dataset."""

    def make(more="", **options):
        (tmp_path / "sub").mkdir(exist_ok=True)
        soundfile.write(tmp_path / "mono.wav", LEFT, RATE, subtype="FLOAT")
        soundfile.write(tmp_path / "sub" / "stereo.wav", np.stack([LEFT, RIGHT], axis=1), RATE, subtype="FLOAT")
        (tmp_path / "cut.wav").write_bytes((tmp_path / "mono.wav").read_bytes()[:4000])
        (tmp_path / "vocab").write_text("{'yes': 0, 'no': 1, '<unk>': 2}")
        (tmp_path / "c.xml.gz").write_bytes(gzip.compress((CORPUS % more).encode()))
        targets = {"vocab_file": str(tmp_path / "vocab"), "unknown_label": "<unk>"}
        options = {"path": str(tmp_path / "c.xml.gz"), "audio": RAW, "targets": targets, **options}
        return Dataset.from_config({"class": "BlissDataset", **options})

    return make


def test_segments(corpus):
    dataset = corpus()
    got = list(dataset.sequences(1))
    assert [seq.tag for seq in got] == ["c/mono/a", "c/mono/b", "c/stereo/1"]
    for seq, expected in zip(got, (LEFT[2000:4000], LEFT[4000:], RIGHT[8000:12000])):
        np.testing.assert_array_equal(seq.data["data"][:, 0], expected)
    assert [seq.data["classes"].tolist() for seq in got] == [[0, 1], [1], [2]]
    assert [seq.data["raw"].item() for seq in got] == ["yes no", "no", "maybe"]
    assert dataset.seq_lengths().tolist() == [25, 150, 50]
    assert dataset.data_keys == ["data", "classes", "orth", "raw"]


def test_order_and_selection(corpus, tmp_path):
    assert [seq.tag for seq in corpus(seq_ordering="sorted").sequences(1)] == ["c/mono/a", "c/stereo/1", "c/mono/b"]
    (tmp_path / "keep").write_text("c/stereo/1\nother\n")
    assert [seq.tag for seq in corpus(segment_file=str(tmp_path / "keep")).sequences(1)] == ["c/stereo/1"]
    (seq,) = corpus().sequences(1, seq_list=["c/mono/b"])
    assert seq.index == 1


def test_segments_to_keep_that_are_not_there(corpus, tmp_path, caplog):
    (tmp_path / "keep").write_text("c/stereo/1\nc/other\nc/more\n")
    assert len(list(corpus(segment_file=str(tmp_path / "keep")).sequences(1))) == 1
    (text,) = caplog.messages
    assert "2 of the 3 tags in segment_file" in text and "are not in the corpus, e.g. 'c/more'" in text


def test_older_options(corpus, tmp_path):
    corpus()
    (tmp_path / "words").write_text("{'UNK': 0, 'yes': 1}")
    options = {"vocab_file": str(tmp_path / "words"), "num_feature_filters": 13, "with_delta": True}
    dataset = Dataset.from_config({"class": "BlissDataset", "path": str(tmp_path / "c.xml.gz"), **options})
    assert dataset.num_outputs["data"] == (26, 2) and dataset.num_outputs["classes"] == (2, 1)
    seq = next(dataset.sequences(1))
    assert seq.data["data"].shape == (26, 26) and seq.data["classes"].tolist() == [1, 0]
    assert corpus(audio=None, targets=None).data_keys == ["orth", "raw"]


@pytest.mark.parametrize(
    "more, text",
    [
        ('<recording name="r" audio="no.wav"><segment name="x"/></recording>', "'c/r/x' .*no.wav' does not exist"),
        ('<recording name="r"><segment name="x"/></recording>', "the recording of segment 'c/r/x' has no audio"),
        (
            '<recording name="r" audio="mono.wav"><segment name="x" start="1" end="3"/></recording>',
            "'c/r/x' .*mono.wav' has 2.000 s, but the segment is from 1 to 3 s",
        ),
        (
            '<recording name="r" audio="mono.wav"><segment name="x" start="2.5"/></recording>',
            "has 2.000 s, but the segment is from 2.5 to the end s",
        ),
        ('<recording name="r" audio="mono.wav"><segment start="1" end="0.5"/></recording>', "ends at 0.5, before"),
        (
            '<recording name="r" audio="sub/stereo.wav"><segment name="x" track="2"/></recording>',
            "'c/r/x' .*stereo.wav' has 2 channels, but no track 2",
        ),
        (
            '<recording name="r" audio="mono.wav"><segment name="x" track="7"/></recording>',
            "'c/r/x' .*mono.wav' has 1 channel, but no track 7",
        ),
        (
            '<recording name="r"><segment name="x"/><segment name="y"/><segment name="x"/></recording>',
            "corpus '.*c.xml.gz' has several segments of the same name, e.g. 'c/r/x'. Rename them",
        ),
        (
            '<recording name="r" audio="cut.wav"><segment name="x"/></recording>',
            "'c/r/x' .*cut.wav' is incomplete",
        ),
        (
            '<recording name="r" audio="c.xml.gz"><segment name="x"/></recording>',
            "'c/r/x' .*c.xml.gz' cannot be decoded",
        ),
        ("<recording>", "Bliss corpus '.*c.xml.gz' cannot be read: mismatched tag"),
    ],
)
def test_bad_corpora(more, text, corpus):
    with pytest.raises(DataError, match=text):
        list(corpus(more).sequences(1))


def test_bad_options(corpus, tmp_path):
    with pytest.raises(ConfigError, match="give 'audio' or num_feature_filters, not both"):
        corpus(num_feature_filters=13, audio=None)
    with pytest.raises(ConfigError, match="give 'targets' or vocab_file, not both"):
        corpus(vocab_file="x")
    (tmp_path / "none").write_text("nobody\n")
    with pytest.raises(DataError, match="has no segments that are in segment_file"):
        list(corpus(segment_file=str(tmp_path / "none")).sequences(1))
    with pytest.raises(DataError, match="nowhere.xml' cannot be read: No such file"):
        list(corpus(path="nowhere.xml").sequences(1))


@pytest.mark.parametrize(
    "options, logged",
    [({"audio": None}, True), ({"audio": None, "seq_ordering": "sorted"}, False), ({"audio": RAW}, False)],
)
def test_folder_of_the_audio(corpus, tmp_path, options, logged, caplog):
    """It has an effect where audio is read, be it for the length of a segment without an end."""
    dataset = corpus(path=str(tmp_path / "c.xml.gz"), audio_dir=str(tmp_path), **options)
    assert len(list(dataset.sequences(1))) == 3
    assert ("'audio_dir'" in caplog.text and "it needs audio, or an order by lengths" in caplog.text) is logged
