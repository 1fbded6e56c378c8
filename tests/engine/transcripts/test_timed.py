"""When labels begin and end, by their frames."""

from __future__ import annotations

import pytest

from returnn_tf.engine.transcripts.timed import timed_labels


def times(*args, **options):
    return [(piece.start, piece.end) for piece in timed_labels(*args, **options)]


def test_a_label_goes_on_until_the_next_one_but_not_much_longer():
    frames = [(0, 1), (1, 2), (4, 5), (6, 7)]
    expected = [(0.0, 0.06), (0.06, 0.22), (0.24, 0.36), (0.36, 0.42)]
    for found, wanted in zip(times("abcd", frames, 0.06, 0.42), expected):
        assert found == pytest.approx(wanted)


def test_the_last_label_ends_with_the_audio():
    assert times("a", [(1, 2)], 0.5, 1.03) == [(0.5, 1.03)]
    assert times("a", [(1, 2)], 0.5, 0.97) == [(0.5, 0.97)]  # its frames go beyond: the last one is padded
    assert times("a", [(2, 3)], 0.5, 0.97) == [(1.0, 1.5)]


def test_labels_without_frames_are_spread_evenly():
    assert times("abcd", None, 0.5, 2.0) == [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5), (1.5, 2.0)]
    assert times("", None, 0.5, 2.0) == []


@pytest.mark.parametrize("seconds, duration", [(None, None), (None, 2.0), (0.5, None)])
def test_unknown_seconds(seconds, duration):
    assert times("a", [(0, 1)], seconds, duration) == [(None, None)]


def test_confidence_is_from_0_to_1():
    found = timed_labels("abc", [(0, 1), (1, 2), (2, 3)], 0.5, 2.0, [1.0000001, -1e-9, 0.5])
    assert [piece.confidence for piece in found] == [1.0, 0.0, 0.5]
