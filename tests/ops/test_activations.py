"""Activation functions by name: aliases, joined names and expressions."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.activations import check_activation, get_activation

X = np.array([-2.0, -0.5, 0.0, 0.5, 2.0], "float32")


@pytest.mark.parametrize(
    "name, expected",
    [
        (None, lambda x: x),
        ("", lambda x: x),
        ("none", lambda x: x),
        ("relu|tanh", lambda x: np.tanh(np.maximum(x, 0))),
        ("tf.minimum(tf.maximum(x, 0.0), 1.0)", lambda x: np.clip(x, 0, 1)),
        (lambda x: x * 2, lambda x: x * 2),
        ("lambda x: x * 2", lambda x: x * 2),
        ("lambda value: tf.nn.relu(value)", lambda x: np.maximum(x, 0)),
    ],
)
def test_value(name: Any, expected: Callable[[Any], Any]) -> None:
    import tensorflow as tf

    check_activation(name)
    np.testing.assert_allclose(get_activation(name)(tf.constant(X)), expected(X), rtol=1e-6)


@pytest.mark.parametrize(
    "name, message",
    [
        ("rellu", "unknown activation 'rellu'"),
        ("relu|T", "unknown activation 'T'"),
        ("Tanhh", "unknown activation 'Tanhh'. Did you mean 'tanh'"),
        ("tf.nn.relu(x", "not a valid expression"),
        ("lambda x", "not a valid"),
    ],
)
def test_bad(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_activation(name)
