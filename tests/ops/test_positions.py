"""Scores by distance against a plain lookup."""

import numpy as np
import pytest

from returnn_tf.ops.frames.positions import by_distance
from returnn_tf.util.lazy_tf import tf


@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("clipping", [1, 2, 4, 9])
def test_by_distance(size: int, clipping: int) -> None:
    scores = np.random.default_rng(1).normal(size=(2, 3, size, 2 * clipping + 1)).astype("float32")
    frames = np.arange(size)
    rows = np.clip(frames[None] - frames[:, None], -clipping, clipping) + clipping
    expected = np.take_along_axis(scores, np.broadcast_to(rows, (2, 3, size, size)), axis=-1)
    value = by_distance(tf.constant(scores), tf.constant(size), clipping)
    np.testing.assert_array_equal(value.numpy(), expected)
