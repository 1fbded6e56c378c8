"""The best alignment of labels to frames, compared with all alignments."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from returnn_tf.engine.transcripts.best_path import best_paths, ctc_frames, frames_of_path

BLANK = 2


def collapsed(path):
    merged = [label for label, _ in itertools.groupby(path)]
    return [label for label in merged if label != BLANK]


@pytest.mark.parametrize("labels", [[], [0], [1, 1], [0, 1, 0], [0, 0, 1]])
@pytest.mark.parametrize("frames", [1, 3, 5])
def test_ctc_frames_are_those_of_the_best_of_all_paths(labels, frames):
    scores = np.log(np.random.default_rng(frames + len(labels)).dirichlet([0.5] * 3, frames))
    paths = [path for path in itertools.product(range(3), repeat=frames) if collapsed(path) == labels]
    (found,) = ctc_frames(scores, [labels], BLANK)
    if not paths:
        assert found is None
        return
    best = max(paths, key=lambda path: sum(scores[t, label] for t, label in enumerate(path)))
    runs, start = [], 0
    for label, group in itertools.groupby(best):
        size = len(list(group))
        runs += [(start, start + size)] if label != BLANK else []
        start += size
    assert list(found) == runs


def test_the_best_path_of_all_takes_no_memory_for_states():
    """Of an hour of audio, the alignment of all frames to all labels would not fit into memory."""
    path = np.tile([0, BLANK, 1, 0], 2000)
    scores = np.where(np.eye(3)[path] > 0, -0.1, -3.0)
    tracemalloc.start()
    try:
        (found,) = ctc_frames(scores, [collapsed(path)], BLANK)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None and found[:3] == ((0, 1), (2, 3), (3, 5)) and found[-1] == (7999, 8000)
    assert most < 10e6


def test_several_sequences_are_aligned_as_each_alone():
    rng = np.random.default_rng(1)
    scores = np.log(rng.dirichlet([1.0] * 5, 12))
    sequences = [[0, 1, 3], [], [3, 3, 3, 1, 0, 1], [1], [0] * 9]
    together = ctc_frames(scores, sequences, BLANK)
    assert together == [ctc_frames(scores, [labels], BLANK)[0] for labels in sequences]
    assert together[1] == () and together[4] is None


def test_a_label_without_any_probability_has_frames():
    with np.errstate(divide="ignore"):
        scores = np.log(np.array([[1.0, 0, 0], [0, 0, 1.0], [1.0, 0, 0]]))
    assert ctc_frames(scores, [[0, 1]], BLANK) == [None]  # no path at all has a probability
    assert ctc_frames(np.maximum(scores, -100.0), [[0, 1, 0]], BLANK) == [((0, 1), (1, 2), (2, 3))]


def test_no_frames():
    assert ctc_frames(np.zeros([0, 3]), [[0], []], BLANK) == [None, ()]
    assert ctc_frames(np.zeros([4, 3]), [], BLANK) == []


def test_frames_of_none_are_left_out_of_the_labels():
    scores = np.array([[-5.0, -5], [1, -5], [2, -5], [-5, -5], [-5, 3], [-5, -5]])
    assert best_paths([scores], np.zeros(6), [[False]]) == [((1, 3), (4, 5))]


@pytest.mark.parametrize(
    "path, labels, frames",
    [
        ([9, 1, 9, 1, 2, 2, 9], [1, 1, 2, 2], [(1, 2), (3, 4), (4, 5), (5, 6)]),  # a transducer
        ([9, 1, 1, 9, 1, 2, 2], [1, 1, 2], [(1, 3), (4, 5), (5, 7)]),  # CTC
        ([1, 1, 2], [1, 1, 2], [(0, 1), (1, 2), (2, 3)]),  # a label in each frame
        ([1, 1, 2], [1, 2], [(0, 2), (2, 3)]),
        ([9, 9], [], []),
        ([8, 1, 9], [1], None),  # two labels for nothing
        ([9, 1, 9], [2], None),
    ],
)
def test_frames_of_a_path(path, labels, frames):
    found = frames_of_path(path, labels)
    assert found == (None if frames is None else tuple(frames))
