"""Lines of files by number: the same as by reading all of the file, whatever the sizes of blocks."""

from __future__ import annotations

import gzip
import os
import random

import numpy as np
import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets.text import lines
from returnn_tf.datasets.text.lines import TextLines

PARTS = ["a", "é", " ", "  ", "\t", "bc", "\r", "\u3000", "\u00a0", "\x01", "\x1f", "\u2028", "dd d"]


def _random_text(rng: random.Random) -> str:
    made = ["".join(rng.choice(PARTS) for _ in range(rng.randint(0, 6))) for _ in range(rng.randint(1, 30))]
    return "\n".join(made) + "\n" * rng.randint(0, 3)


@pytest.mark.parametrize("block", [1, 7, 1 << 24])
def test_same_as_reading_the_whole_file(tmp_path, monkeypatch, block):
    """Plain and compressed, with and without empty lines; starts of lines beyond what 4 bits can hold."""
    monkeypatch.setattr(lines, "_BLOCK", block)
    if block < 10:
        monkeypatch.setattr(lines, "_MARK", block)
        monkeypatch.setattr(lines, "_SPAN", 16)
        monkeypatch.setattr(lines, "_LINES_AT_ONCE", 3)
    rng = random.Random(block)
    for _ in range(20):
        text = _random_text(rng) + "x"
        packed, skip, keep = rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.5
        if rng.random() < 0.5:
            text += "\n"
        path = str(tmp_path / "text")
        with (gzip.open if packed else open)(path, "wb") as file:
            file.write(text.encode())
        expected = list(enumerate(text.split("\n"), 1))
        if not expected[-1][1] or not (keep or packed):
            del expected[-1]
        if skip:
            blank = bytes(range(33))
            expected = [(n, line) for n, line in expected if (line.encode().strip(blank) if packed else line)]
        got = TextLines(path, skip_empty=skip, keep_open_end=keep)
        assert [got.text(i) for i in range(len(got))] == list(got.texts()) == [line for _, line in expected]
        assert got.num_bytes.tolist() == [len(line.encode()) for _, line in expected]
        assert got.num_words().tolist() == [len(line.split()) for _, line in expected]
        assert [got.place(i) for i in range(len(got))] == ["file %r, line %d" % (path, n) for n, _ in expected]
        assert got.has_open_end == (not text.endswith("\n"))


def test_numbers_of_many_lines_cost_one_pass(tmp_path, monkeypatch):
    """Where many lines are left out, each of them is told; the file must not be read from its start each time."""
    path = tmp_path / "text"
    path.write_bytes(b"some words\n\n" * 50000)
    text = TextLines(str(path), skip_empty=True)
    read, sizes = text._read, []
    monkeypatch.setattr(text, "_read", lambda start, size: sizes.append(size) or read(start, size))
    assert [text.place(i) for i in range(40000, 40100)] == [
        "file %r, line %d" % (str(path), 2 * i + 1) for i in range(40000, 40100)
    ]
    assert sizes[0] == 600000 and len(sizes) == 101 and max(sizes[1:]) < 20000


def test_index_is_small(tmp_path):
    """8 bytes for each line, and nothing of the text."""
    path = tmp_path / "text"
    path.write_bytes(b"some words of a line\n" * 50000)
    index = TextLines(str(path), skip_empty=True)._index
    arrays = [value for value in vars(index).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == 8 * 50000


def test_bad_files(tmp_path):
    path = tmp_path / "text"
    for content, text in (
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(b"a\n" * 99)[:-9], "can"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match="'%s'.*%s" % (path, text)):
            TextLines(str(path), skip_empty=True)
    path.write_bytes(b"a\nb\xe9\n")
    with pytest.raises(DataError, match="'%s', line 2: it is not UTF-8" % path):
        TextLines(str(path), skip_empty=True).text(1)
    for missing in (str(tmp_path / "nothing"), str(tmp_path)):
        with pytest.raises(DataError, match="'%s'" % missing):
            TextLines(missing, skip_empty=True)


def test_a_file_that_shrinks_is_an_error(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"aa\nbb\n")
    got = TextLines(str(path), skip_empty=True)
    os.truncate(path, 4)
    with pytest.raises(DataError, match="became shorter while it was in use"):
        got.text(1)


def test_no_space_for_a_compressed_text(tmp_path, monkeypatch):
    """Says where it was decompressed to, and how to choose another folder."""
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a\n" * 1000))

    class Full:
        def write(self, part):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(lines.tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(DataError, match=r"text.gz'.*No space left on device \(decompressed to .*TMPDIR"):
        TextLines(str(path), skip_empty=True)
