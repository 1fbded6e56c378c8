"""Initialisers by name: variance, range, orthogonality, and errors."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.initializers import get_initializer


def _values(spec: Any, shape: Any = (60, 80)) -> numpy.ndarray:
    return numpy.asarray(get_initializer(spec)(shape, numpy.random.default_rng(3)))


@pytest.mark.parametrize(
    "spec, stddev",
    [
        ("glorot_uniform", (2 / 140) ** 0.5),
        ("xavier", (2 / 140) ** 0.5),
        ("glorot_normal_initializer", (2 / 140) ** 0.5),
        ("he_normal", (2 / 60) ** 0.5),
        ("lecun_uniform()", (1 / 60) ** 0.5),
        ("random_normal_initializer(mean=0.0, stddev=0.1)", 0.1),
        ("tf.random_uniform_initializer(-0.3, 0.3)", 0.6 / 12**0.5),
        ("variance_scaling_initializer(scale=0.78, mode='fan_in', distribution='uniform')", (0.78 / 60) ** 0.5),
        ("VarianceScaling(scale=2.0, mode='fan_out')", (2 / 80) ** 0.5),
        ("orthogonal", (1 / 80) ** 0.5),
    ],
)
def test_spread(spec: str, stddev: float) -> None:
    values = _values(spec)
    assert values.shape == (60, 80)
    assert abs(values.mean()) < 0.1 * stddev
    assert values.std() == pytest.approx(stddev, rel=0.05)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 3, 4)])
def test_orthogonal(shape: Any) -> None:
    matrix = _values("orthogonal", shape).reshape(-1, shape[-1])
    product = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    numpy.testing.assert_allclose(product, numpy.eye(len(product)), atol=1e-12)


@pytest.mark.parametrize(
    "spec, value", [(0.25, 0.25), ("ones", 1.0), ("zeros_initializer", 0.0), ("constant(0.5)", 0.5)]
)
def test_constants(spec: Any, value: float) -> None:
    assert (_values(spec, (3,)) == value).all()


@pytest.mark.parametrize(
    "spec, message",
    [
        ("glorot_unifrom", "Did you mean 'glorot_uniform'"),
        ("random_normal(std=1)", "unexpected keyword argument 'std'"),
        ("constant(open('x'))", "nor a call with plain numbers"),
        ("a b", "nor a call with plain numbers"),
        ([1, 2], "a number, a name or an expression"),
    ],
)
def test_errors(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_initializer(spec)
