"""Random numbers by an explicit state of the generator Philox: the numbers of `tf.random.Generator` for each state.

A state is int64 [3]: a counter of two words and a key of one word. An array of n numbers advances the counter by
``256 * n``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.util.lazy_tf import tf

STATE_SIZE = 3
_COUNTER_SIZE = 2
_WORD = 2**64
_ALGORITHM = 1  # Philox, in the numbering of TensorFlow's random ops
_COUNTS_PER_NUMBER = 256


def state_of_seed(seed: Union[int, Sequence[int]]) -> NDArray[np.int64]:
    """Return the state of a seed, int64 [3], as `tf.random.create_rng_state` defines it.

    A number is split into words of 64 bits, lowest first. Of a list, the first three numbers are the state; a shorter
    one is padded in front, so that it sets the key.
    """
    if isinstance(seed, (int, np.integer)):
        words = [int(seed) >> (64 * i) for i in range(STATE_SIZE)]
    else:
        words = [int(word) for word in seed][:STATE_SIZE]
        words = [0] * (STATE_SIZE - len(words)) + words
    return np.array([word % _WORD for word in words], np.uint64).astype(np.int64)


def random_state(rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the state of a seed that a generator draws."""
    return state_of_seed(int(rng.integers(2**31)))


def advanced(state: Any, count: Any) -> Any:
    """Return the state after ``count`` numbers were drawn.

    :param state: int64 [3]
    :param count: int scalar
    """
    words = tf.bitcast(state, tf.uint64)
    low = words[0] + tf.cast(count, tf.uint64) * _COUNTS_PER_NUMBER
    carry = tf.cast(low < words[0], tf.uint64)
    return tf.bitcast(tf.stack([low, words[1] + carry, words[2]]), tf.int64)


def with_other_key(state: Any, offset: int) -> Any:
    """Return a state whose numbers are independent of those of ``state``, by another key; the same for offset 0."""
    if not offset:
        return state
    return tf.concat([state[:_COUNTER_SIZE], state[_COUNTER_SIZE:] + offset], axis=0)


def uniform(state: Any, shape: Any, minval: Any, maxval: Any, dtype: str) -> Any:
    """Draw from [minval, maxval), both scalars of the dtype: float16, float32, float64, int32 or int64."""
    if tf.as_dtype(dtype).is_integer:
        return tf.raw_ops.StatelessRandomUniformIntV2(minval=minval, maxval=maxval, **_drawing(state, shape))
    values = tf.raw_ops.StatelessRandomUniformV2(dtype=dtype, **_drawing(state, shape))
    return values * (maxval - minval) + minval


def normal(state: Any, shape: Any, mean: Any, stddev: Any, dtype: str) -> Any:
    """Draw from a normal distribution; mean and stddev are scalars of the dtype."""
    return tf.raw_ops.StatelessRandomNormalV2(dtype=dtype, **_drawing(state, shape)) * stddev + mean


def truncated_normal(state: Any, shape: Any, mean: Any, stddev: Any, dtype: str) -> Any:
    """Draw from a normal distribution without what is more than two standard deviations from the mean."""
    return tf.raw_ops.StatelessTruncatedNormalV2(dtype=dtype, **_drawing(state, shape)) * stddev + mean


def _drawing(state: Any, shape: Any) -> dict[str, Any]:
    """Return the arguments that all of these ops have."""
    words = tf.bitcast(state, tf.uint64)
    return {
        "shape": shape,
        "key": words[_COUNTER_SIZE:],
        "counter": words[:_COUNTER_SIZE],
        "alg": tf.constant(_ALGORITHM, tf.int32),
    }
