"""Lists of tags and lengths: read as data, never executed."""

from __future__ import annotations

import gzip
import os
import pickle

import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets.core.safe_files import read_bytes, read_plain_pickle, read_seq_lens, read_seq_tags, read_text


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, ("touch %s" % self.path,)


def test_malicious_pickle_is_not_executed(tmp_path):
    path, trace = tmp_path / "tags.pkl", tmp_path / "trace"
    for content in (_Evil(trace), ["a", _Evil(trace)], {"a": [_Evil(trace)]}):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(DataError, match="tags.pkl': only plain lists.* but: it contains .*system"):
            read_seq_tags(str(path))
    assert not trace.exists()


def test_only_newlines_end_tags(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_bytes("a\u2028b\n\nc\x0bd\r\ne\x85".encode())
    assert read_seq_tags(str(path)) == ["a\u2028b", "c\x0bd", "e\x85"]


def test_malicious_text_is_not_executed(tmp_path):
    path, trace = tmp_path / "lens.py", tmp_path / "trace"
    path.write_text("{'a': __import__('os').system('touch %s')}" % trace)
    with pytest.raises(DataError, match="does not hold a Python literal"):
        read_seq_lens(str(path))
    assert not trace.exists()


@pytest.mark.parametrize("content", [["a", "b"], ("a", "b"), {"a", "b"}, frozenset(["a", "b"])])
@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles(content, protocol, tmp_path):
    path = tmp_path / "tags.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    assert sorted(read_seq_tags(str(path))) == ["a", "b"]


def test_plain_values(tmp_path):
    path = tmp_path / "any.pkl"
    value = {"a": [1, 2.5, None, True, b"x"], ("b", 3): {"c"}}
    path.write_bytes(pickle.dumps(value))
    assert read_plain_pickle(str(path)) == value


@pytest.mark.parametrize("content", [b"", b"\x80", b"hello", b"\x80\x04\x95" + b"\xff" * 8, b"(lp0\n."])
def test_damaged_pickles(content, tmp_path):
    path = tmp_path / "tags.pkl"
    path.write_bytes(content)
    if content == b"(lp0\n.":
        assert read_seq_tags(str(path)) == []
        return
    with pytest.raises(DataError, match="tags.pkl"):
        read_seq_tags(str(path))


@pytest.mark.parametrize("value", [{"a": 1}, ["a", 1], "a"])
def test_pickle_of_other_content(value, tmp_path):
    path = tmp_path / "tags.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(DataError, match="must hold a list of sequence tags"):
        read_seq_tags(str(path))


@pytest.mark.parametrize(
    "text, error",
    [
        ("[1, 2]", "must hold a dict"),
        ("{'a': 'b'}", "not a pair of sequence tag and length"),
        ("{'a': True}", "not a pair"),
    ],
)
def test_lengths_of_other_content(text, error, tmp_path):
    path = tmp_path / "lens.py"
    path.write_text(text)
    with pytest.raises(DataError, match=error):
        read_seq_lens(str(path))


def test_damaged_or_other_files(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_bytes(str(tmp_path / "none"))
    path = tmp_path / "tags.txt.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_seq_tags(str(path))
    path.write_bytes(gzip.compress(b"tag\n" * 1000)[:-10])
    with pytest.raises(DataError, match="cannot be read"):
        read_seq_tags(str(path))
    path.write_bytes(gzip.compress(b"\xff\xfe"))
    with pytest.raises(DataError, match="not a UTF-8 text file"):
        read_seq_tags(str(path))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "with a byte order mark"])
def test_other_encodings(tmp_path, mark):
    path = tmp_path / "words.txt"
    path.write_bytes(mark + "für\ndas\n".encode())
    assert read_text(str(path)) == "für\ndas\n"
    path.write_bytes(mark + b"das\nf\xfcr\n")  # Latin-1
    with pytest.raises(DataError, match="words.txt' is not a UTF-8 text file: line 2, byte 0xfc. Convert it: iconv"):
        read_text(str(path))


def test_bomb(tmp_path):
    path = tmp_path / "tags.txt.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(DataError, match="holds more than 1000 bytes"):
        read_bytes(str(path), max_bytes=1000)


def test_lines(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_text("a b\n\nc\r\nä")
    assert read_seq_tags(str(path)) == ["a b", "c", "ä"]
