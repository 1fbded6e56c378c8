"""Mean and variance over axes."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_tf.ops import normalize
from returnn_tf.util.lazy_tf import tf


@pytest.mark.parametrize("frames", [4, 0])
def test_moments_of_a_dynamic_axis(frames: int) -> None:
    """Those of no frames are 0."""
    graph = tf.function(lambda x: normalize.moments(x, [0, 1]), input_signature=[tf.TensorSpec([2, None, 3])])
    x = np.random.RandomState(1).normal(size=(2, frames, 3)).astype("float32")
    expected = [x.mean((0, 1)), x.var((0, 1))] if frames else [np.zeros(3)] * 2
    for moment, right in zip(graph(x), expected):
        np.testing.assert_allclose(moment[0, 0], right, rtol=1e-5, atol=1e-6)


def test_moments_of_more_entries_than_an_int32_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalize, "size_of", lambda x, axis: tf.constant(1 << 16))
    mean, variance = normalize.moments(tf.constant([[1.0, 3.0]]), [0, 1])
    assert (mean.numpy().item(), variance.numpy().item()) == (2, 1)
