"""Scores by distance against a plain lookup."""

import numpy
import pytest

from returnn_tf.ops.frames.positions import by_distance
from returnn_tf.util.lazy_tf import tf


@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("clipping", [1, 2, 4, 9])
def test_by_distance(size: int, clipping: int) -> None:
    scores = numpy.random.default_rng(1).normal(size=(2, 3, size, 2 * clipping + 1)).astype("float32")
    frames = numpy.arange(size)
    rows = numpy.clip(frames[None] - frames[:, None], -clipping, clipping) + clipping
    expected = numpy.take_along_axis(scores, numpy.broadcast_to(rows, (2, 3, size, size)), axis=-1)
    value = by_distance(tf.constant(scores), tf.constant(size), clipping)
    numpy.testing.assert_array_equal(value.numpy(), expected)
