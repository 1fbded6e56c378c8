"""The best path of CTC."""

import numpy as np
import pytest

from returnn_tf.config.errors import DataError
from returnn_tf.engine.decoding.decoder import Decoded
from returnn_tf.engine.decoding.greedy import GreedyDecoder


def scores_of(path, num_labels=4, best=0.7):
    """Log posteriors whose best label in each frame is given; the others share the rest."""
    probs = np.full((len(path), num_labels), (1 - best) / (num_labels - 1))
    probs[np.arange(len(path)), path] = best
    return np.log(probs).astype("float32")


@pytest.mark.parametrize(
    "path, labels, frames",
    [
        ([], (), ()),
        ([3, 3], (), ()),
        ([0, 0, 1, 1, 1], (0, 1), ((0, 2), (2, 5))),
        ([3, 2, 3, 2, 2, 3], (2, 2), ((1, 2), (3, 5))),
        ([1, 1], (1,), ((0, 2),)),
    ],
)
def test_best_path(path, labels, frames):
    (found,) = GreedyDecoder(4, blank=3).decode(scores_of(path))
    total = len(path) * float(np.log(0.7))
    assert (found.labels, found.frames, found.words) == (labels, frames, None)
    np.testing.assert_allclose([found.score, found.parts["acoustic"]], total, rtol=1e-6)


def test_blank_at_index_0_and_equal_scores():
    scores = np.log(np.full((2, 3), 1 / 3))
    assert GreedyDecoder(3, blank=0).decode(scores)[0].labels == ()
    assert GreedyDecoder(3, blank=2).decode(scores)[0].labels == (0,)


@pytest.mark.parametrize(
    "scores, text",
    [
        (np.zeros((3, 5)), r"4 labels\], got the shape \[3, 5\]"),
        (np.zeros((2, 3, 4)), r"got the shape \[2, 3, 4\]"),
        (np.full((2, 4), np.nan), "NaN or infinite"),
        (np.full((2, 4), np.inf), "NaN or infinite"),
    ],
)
def test_wrong_scores(scores, text):
    with pytest.raises(DataError, match=text):
        GreedyDecoder(4, blank=3).decode(scores)


def test_labels_of_probability_0():
    scores = np.where(np.eye(4) > 0, 0.0, -np.inf)
    assert GreedyDecoder(4, blank=3).decode(scores) == [
        Decoded((0, 1, 2), ((0, 1), (1, 2), (2, 3)), 0.0, {"acoustic": 0.0})
    ]
