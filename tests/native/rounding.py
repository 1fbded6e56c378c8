"""Ops whose products have factors rounded to bfloat16, compared with TensorFlow's in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from returnn_tf.util.lazy_tf import tf

Function = Callable[..., Sequence[Any]]


def check_errors(native: Function, plain: Function, inputs: Sequence[Any], weights: Sequence[Any], by: int) -> None:
    """Check that values and gradients are closer to those in float64 than those of TensorFlow in bfloat16, but rounded.

    :param native: the op, of float32 inputs; it returns a list of results
    :param plain: the same in TensorFlow, for any type
    :param weights: of the results in the scalar that is differentiated
    :param by: it is differentiated by so many of the inputs
    """
    exact = _results_and_gradients(plain, tf.float64, inputs, weights, by)
    rounded = _results_and_gradients(native, tf.float32, inputs, weights, by)
    usual = _results_and_gradients(plain, tf.bfloat16, inputs, weights, by)
    for result, theirs, value in zip(rounded, usual, exact):
        error, limit = (np.sqrt(np.mean((x - value) ** 2)) for x in (result, theirs))
        assert 0 < error < limit


def _results_and_gradients(
    function: Function, dtype: tf.DType, inputs: Sequence[Any], weights: Sequence[Any], by: int
) -> list[Any]:
    tensors = [tf.constant(x, dtype) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        results = function(*tensors)
        score = sum(tf.reduce_sum(y * tf.cast(weight, dtype)) for y, weight in zip(results, weights))
    return [tf.cast(x, tf.float64).numpy() for x in (*results, *tape.gradient(score, tensors[:by]))]
