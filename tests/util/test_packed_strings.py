"""Many strings in little memory: whatever is added, in whatever way, comes back."""

from __future__ import annotations

import random

import pytest

from returnn_tf.util.packed_strings import PackedStrings

NAMES = ["corpus/recording-%05d/%d" % divmod(number, 7) for number in range(300)]
LISTS: dict[str, list[str]] = {
    "none": [],
    "few": ["a", "", "bc"],
    "one block": NAMES[:64],
    "one more": NAMES[:65],
    "names": NAMES,
    "shuffled": random.Random(1).sample(NAMES, len(NAMES)),
    "of one length": ["%06d" % number for number in range(200)],
    "equal": ["same"] * 130,
    "empty": [""] * 130,
    "one begins another": ["a" * (number % 70) for number in range(200)],
    "letters of all kinds": ["%s%d" % ("aé\u2581\U0001f600"[number % 4], number) for number in range(200)],
    "long": ["x" * 300 + str(number) for number in range(130)],
    "longer than 64 kB": ["y" * 2000 + str(number) * 1000 for number in range(130)],
    "then longer": [*NAMES[:64], *["%03d" % number * 5000 for number in range(64)], *NAMES[64:]],
}


@pytest.mark.parametrize("before", [0, 1, 64])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", LISTS)
def test_what_is_added_comes_back(name: str, together: bool, before: int) -> None:
    strings = PackedStrings()
    expected = ["before"] * before + LISTS[name]
    for text in expected[:before]:
        strings.append(text)
    if together:
        strings.extend([text.encode("utf8") for text in LISTS[name]])
    else:
        for text in LISTS[name]:
            strings.append(text)
    assert len(strings) == len(expected) and list(strings) == expected
    assert [strings[index] for index in range(len(expected))] == expected
    for count in (50, 5000):  # one by one, and as arrays
        chosen = random.Random(2).choices(range(len(expected)), k=count) if expected else []
        assert strings.chosen(chosen) == [expected[index] for index in chosen]
    copy = PackedStrings.of_arrays(strings.arrays())
    assert list(copy) == list(strings) == expected == copy.chosen(range(len(expected)))
    assert len(copy) == len(expected)
    for index in (-1, len(expected)):
        with pytest.raises(IndexError, match="no string %d, only %d" % (index, len(expected))):
            strings[index]


def test_bytes_that_are_no_text() -> None:
    strings = PackedStrings()
    strings.extend([b"a\0b", b"\xff", b"\0", "é".encode()] * 40)
    assert list(strings) == ["a", "\ufffd", "", "é"] * 40


def test_what_a_literal_may_name() -> None:
    strings = PackedStrings()
    for _ in range(70):
        strings.append("\ud800x")
    strings.extend_texts(["\ud801\0"] * 70)
    assert list(strings) == ["\ud800x"] * 70 + ["\ud801\0"] * 70


def test_repeated() -> None:
    strings = PackedStrings()
    strings.extend([b"a", b"b", b"a", b"c", b"b", b"a"] + [b"d%d" % number for number in range(100)])
    assert strings.repeated() == [2, 4, 5]


def test_memory() -> None:
    strings = PackedStrings()
    strings.extend([b"corpus/recording-%07d/s%05d" % divmod(number, 37) for number in range(64_000)])
    size = sum(part.nbytes for part in strings.arrays().values())
    assert size / 64_000 < 13  # of 31 letters; a list of them takes 88
