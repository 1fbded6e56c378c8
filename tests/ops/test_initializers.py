"""Initialisers in every form: their spread, those with a seed as TensorFlow draws them, expressions, and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.ops.initializers import get_initializer


def _values(spec: Any, shape: Any = (60, 80)) -> np.ndarray:
    return np.asarray(get_initializer(spec)(shape, np.random.default_rng(3)))


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
        ("tf.compat.v1.initializers.random_normal(stddev=sqrt(0.04))", 0.2),
        ("init_ops.RandomNormal(0.0, 1 / math.sqrt(25))", 0.2),
        ("RandomNormal", 1.0),
        ("random_normal_initializer", 1.0),
        ("truncated_normal", 0.8796),
        ("variance_scaling_initializer(scale=0.78, mode='fan_in', distribution='uniform')", (0.78 / 60) ** 0.5),
        ("VarianceScaling(scale=2.0, mode='fan_out')", (2 / 80) ** 0.5),
        ("orthogonal", (1 / 80) ** 0.5),
        ("uniform_unit_scaling(factor=0.5)", 0.5 / 60**0.5),
        ({"class": "VarianceScaling", "scale": 2.0, "mode": "fan_out", "distribution": "normal"}, (2 / 80) ** 0.5),
        ({"class": "VarianceScaling", "distribution": "untruncated_normal", "dtype": "float32"}, (1 / 60) ** 0.5),
        ({"class": "RandomUniform", "minval": -0.3, "maxval": 0.3}, 0.6 / 12**0.5),
        ({"class": "GlorotUniform"}, (2 / 140) ** 0.5),
        ({"class": "Orthogonal", "gain": 2.0}, (4 / 80) ** 0.5),
    ],
)
def test_spread(spec: Any, stddev: float) -> None:
    values = _values(spec)
    assert values.shape == (60, 80)
    assert abs(values.mean()) < 0.1 * stddev
    assert values.std() == pytest.approx(stddev, rel=0.05)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 3, 4)])
def test_orthogonal(shape: Any) -> None:
    matrix = _values("orthogonal", shape).reshape(-1, shape[-1])
    product = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-12)


@pytest.mark.parametrize(
    "spec, value",
    [
        (0.25, 0.25),
        (np.float32(0.5), 0.5),
        (np.array(2.0), 2.0),
        ("ones", 1.0),
        ("zeros_initializer", 0.0),
        ("constant(0.5)", 0.5),
        ("Constant(value=-3)", -3.0),
        ("1 / sqrt(16)", 0.25),
        ("math.log(numpy.e)", 1.0),
        ("numpy.full((3,), 0.5)", 0.5),
        ("[float(i) * 0 + 7 for i in range(3)]", 7.0),
        ("(lambda x: x + 1)(pi * 0)", 1.0),
        ({"class": "Constant", "value": 0.3}, 0.3),
        ({"class": "Ones"}, 1.0),
    ],
)
def test_constants(spec: Any, value: float) -> None:
    assert (_values(spec, (3,)) == value).all()


@pytest.mark.parametrize("spec", [np.arange(6.0), "numpy.arange(6.)", "constant(list(range(6)))"])
def test_arrays(spec: Any) -> None:
    """An array with as many numbers as the parameter has its shape."""
    assert (_values(spec, (2, 3)) == np.arange(6).reshape(2, 3)).all()


@pytest.mark.parametrize(
    "spec, name, arguments",
    [
        ("random_uniform_initializer(-1, 1, seed=2)", "random_uniform", {"minval": -1, "maxval": 1, "seed": 2}),
        ({"class": "RandomNormal", "mean": 0.1, "seed": 5}, "random_normal", {"mean": 0.1, "seed": 5}),
        ({"class": "TruncatedNormal", "stddev": 0.1, "seed": 6}, "truncated_normal", {"stddev": 0.1, "seed": 6}),
        ({"class": "GlorotNormal", "seed": 1}, "glorot_normal", {"seed": 1}),
        ({"class": "Orthogonal", "gain": 0.5, "seed": 9}, "orthogonal", {"gain": 0.5, "seed": 9}),
        ("he_normal(seed=3)", "he_normal", {"seed": 3}),
        ("UniformUnitScaling(2.0, 4)", "uniform_unit_scaling", {"factor": 2.0, "seed": 4}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_seed_gives_the_numbers_of_tensorflow(spec: Any, name: str, arguments: Any, dtype: str) -> None:
    """The generator does not matter, nor does what was drawn before."""
    import dataclasses

    import tensorflow as tf

    init = dataclasses.replace(get_initializer(spec), dtype=dtype)
    first = init((7, 9), np.random.default_rng(1))
    second = init((7, 9), np.random.default_rng(2))
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        value = getattr(tf.compat.v1.initializers, name)(**arguments)((7, 9), dtype=tf.as_dtype(dtype))
        expected = session.run(value)
    assert first.dtype == dtype
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)


def test_an_initializer_of_tensorflow() -> None:
    """An object of TensorFlow as value: with its seed its numbers, without one those of our generator."""
    import tensorflow as tf

    assert (_values(tf.compat.v1.constant_initializer(0.5), (3,)) == 0.5).all()
    init = get_initializer(tf.compat.v1.random_normal_initializer())
    values = [init((50,), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.allclose(values[0], values[2])


@pytest.mark.parametrize(
    "spec, message",
    [
        ("glorot_unifrom", "Did you mean 'glorot_uniform'"),
        ("random_normal(std=1)", "unexpected keyword argument 'std'. Its arguments: mean, stddev, seed, dtype"),
        ("constant(open('/no/such/file'))", "Initialiser .*FileNotFoundError"),
        ("a b", "SyntaxError"),
        ("random_nomal(1.0)", "name 'random_nomal' is not defined. Did you mean 'random_normal'"),
        ("1 / 0 + sqrt(1)", "ZeroDivisionError"),
        ("sqrt", "Unknown initialiser 'sqrt'"),
        ("str(1)", "the expression gives the text '1'"),
        ("random_normal(seed='a')", "the seed must be an int, not 'a'"),
        ("variance_scaling(mode='fan')", "unknown mode 'fan'. Use fan_in, fan_out, fan_avg"),
        ("variance_scaling(scale=-1)", "scale must be above 0"),
        ([1, 2], "a number, an array, a name"),
        ({"class": "RandomNoraml"}, "Unknown class of initialiser 'RandomNoraml'. Did you mean 'RandomNormal'"),
        ({"class": "Constant", "valeu": 1}, "unexpected keyword argument 'valeu'. Its arguments: value, dtype"),
        ({"class": "Identity", "seed": 1}, "unexpected keyword argument 'seed'"),
        ({"class": "Zeros", "dtype": "flaot32"}, "unknown dtype 'flaot32'. Did you mean 'float32'"),
        ({"stddev": 1.0}, "lacks its 'class'"),
        ({"class": "VarianceScaling", "distribution": "gauss"}, "unknown distribution 'gauss'"),
    ],
)
def test_errors(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_initializer(spec)


@pytest.mark.parametrize(
    "spec, shape, message",
    [
        (np.zeros(4), (5,), r"has the shape \(4,\), but the parameter \(5,\)"),
        (np.array("a"), (5,), "must consist of numbers"),
        ("orthogonal", (5,), "needs a matrix"),
        ("identity", (5, 4, 3), "needs a matrix"),
        ("orthogonal(seed=1)", (5,), "needs a matrix"),
    ],
)
def test_shapes_that_do_not_fit(spec: Any, shape: Any, message: str) -> None:
    import re

    assert re.search(message, get_initializer(spec).check(shape))
    assert get_initializer(0.0).check(shape) is None and math.isfinite(_values(0.0, shape).sum())
