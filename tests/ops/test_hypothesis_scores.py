"""The arithmetic of scores of hypotheses: TensorFlow and numpy agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.ops.sequence import hypothesis_scores as scores_of
from returnn_tf.util.lazy_tf import tf

SCORES = np.array([[-3.0, -1.5, -2.0]], "float32")
ENDED = np.array([[True, False, True]])


def both(function: Any, *args: Any, **options: Any) -> np.ndarray:
    """Return the result for arrays, after checking that it is that for tensors."""
    found = function(np, *args, **options)
    tensors = [tf.constant(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    np.testing.assert_allclose(function(tf, *tensors, **options), found, rtol=1e-6)
    return np.asarray(found)


@pytest.mark.parametrize("step, factor", [(0, 1.0), (1, 4.0), (3, 16 / 9)])
def test_grown(step: int, factor: float) -> None:
    found = both(scores_of.grown, SCORES, ENDED, np.array(step, "float32"), 2.0)
    np.testing.assert_allclose(found, [[-3.0 * factor, -1.5, -2.0 * factor]], rtol=1e-6)


def test_normalized() -> None:
    found = both(scores_of.normalized, SCORES, np.array([[0.0, 2.0, 4.0]], "float32"), 0.5)
    np.testing.assert_allclose(found, SCORES / [[1.0, 2**0.5, 2.0]], rtol=1e-6)


@pytest.mark.parametrize("include_eos, expected", [(True, [[3, 5, 2]]), (False, [[4, 5, 3]])])
def test_steps_taken(include_eos: bool, expected: Any) -> None:
    lens, steps = np.array([[3, 5, 2]]), np.full([1, 3], 5)
    np.testing.assert_array_equal(both(scores_of.steps_taken, ENDED, lens, steps, include_eos=include_eos), expected)


def test_of_ended() -> None:
    scores = np.tile(np.float32([-1.0, -2.0]), [1, 3, 1])
    before, labels = np.array([[[1], [0], [0]]]), np.arange(2)
    found = both(scores_of.of_ended, scores, ENDED, labels, before, np.array(scores_of.OTHERS, "float32"))
    np.testing.assert_allclose(found, [[[-1e30, 0.0], [-1.0, -2.0], [0.0, -1e30]]])
