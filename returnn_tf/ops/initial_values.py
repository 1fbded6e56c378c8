"""Initial values of parameters: functions ``(shape, generator) -> array``.

Values without a seed depend only on the generator and need no TensorFlow. With one they are those of
TensorFlow's initialisers.
Fans: the last two axes are (in, out), all before them are a receptive field (Glorot & Bengio 2010; He et al. 2015).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import OptionError
from returnn_tf.util.lazy_tf import tf

Draw = Callable[[tuple[int, ...], np.random.Generator], NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Constant:
    """Fills with a number, or has the values of an array of the same size."""

    value: Any = 0.0

    def check(self, shape: tuple[int, ...]) -> Optional[str]:
        """Return the reason why the value does not fit a parameter of this shape, or None."""
        value = np.asarray(self.value)
        if value.dtype.kind not in "biufc":
            return "an initial value must consist of numbers, not %s" % value.dtype
        if value.ndim == 0 or value.size == math.prod(shape):
            return None
        return "the initial value has the shape %s, but the parameter %s" % (value.shape, shape)

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        """Return the array."""
        value = np.asarray(self.value)
        return np.broadcast_to(value, shape) if value.ndim == 0 else value.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Draws random numbers, or builds a matrix.

    :param draw: see the module
    :param rank: a test of the number of axes, and the text if it fails
    """

    draw: Draw
    rank: Optional[tuple[Callable[[int], bool], str]] = None

    def check(self, shape: tuple[int, ...]) -> Optional[str]:
        """Return the reason why this shape is refused, or None."""
        return None if self.rank is None or self.rank[0](len(shape)) else "%s, not %s" % (self.rank[1], shape)

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        """Return the array."""
        return self.draw(shape, rng)


@dataclasses.dataclass(frozen=True)
class FromTensorFlow:
    """The values that an initialiser of TensorFlow draws in a new graph; with a seed always the same.

    :param make: returns the initialiser
    :param seeded: whether it has a seed
    :param plain: its counterpart without TensorFlow, which checks the shape
    """

    make: Callable[[], Any]
    seeded: bool
    plain: Optional[Drawn] = None
    dtype: str = "float32"

    def check(self, shape: tuple[int, ...]) -> Optional[str]:
        """Return the reason why this shape is refused, or None."""
        return None if self.plain is None else self.plain.check(shape)

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        """Return the array."""
        with tf.Graph().as_default() as graph, tf.device("CPU:0"):
            if not self.seeded:
                tf.compat.v1.set_random_seed(int(rng.integers(2**31)))
            value = self.make()(shape, dtype=tf.as_dtype(self.dtype))
            with tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0})) as session:
                result: NDArray[Any] = session.run(value)
        return result


def random_normal(mean: float = 0.0, stddev: float = 1.0) -> Drawn:
    """Draw from a normal distribution."""
    return Drawn(lambda shape, rng: rng.normal(mean, stddev, shape))


def truncated_normal(mean: float = 0.0, stddev: float = 1.0) -> Drawn:
    """Draw from a normal distribution, redrawing values beyond two standard deviations."""

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        values = np.asarray(rng.standard_normal(shape))
        while True:
            bad = np.abs(values) > 2.0
            count = int(bad.sum())
            if not count:
                return mean + stddev * values
            values[bad] = rng.standard_normal(count)

    return Drawn(draw)


def random_uniform(minval: float = 0.0, maxval: Optional[float] = None) -> Drawn:
    """Draw from the uniform distribution in [minval, maxval); maxval is 1 by default."""
    top = 1.0 if maxval is None else maxval
    if not minval <= top:
        raise OptionError("random_uniform: minval %s is above maxval %s." % (minval, top))
    return Drawn(lambda shape, rng: rng.uniform(minval, top, shape))


def uniform_unit_scaling(factor: float = 1.0) -> Drawn:
    """Draw from the uniform distribution that keeps the scale of the input, which has all axes but the last."""

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        limit = math.sqrt(3.0 / max(1, math.prod(shape[:-1]))) * factor
        return np.asarray(rng.uniform(-limit, limit, shape))

    return Drawn(draw)


_DISTRIBUTIONS = ("uniform", "truncated_normal", "normal", "untruncated_normal")
_MODES = ("fan_in", "fan_out", "fan_avg")


def variance_scaling(scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal") -> Drawn:
    """Draw with variance ``scale / n``.

    n is the number of inputs, outputs, or their mean (``fan_in``, ``fan_out``, ``fan_avg``). The distribution "normal"
    is the truncated one.
    """
    if not scale > 0:
        raise OptionError("variance_scaling: scale must be above 0, got %s." % scale)
    if mode not in _MODES:
        raise OptionError("variance_scaling: unknown mode %r. Use %s." % (mode, ", ".join(_MODES)))
    if distribution not in _DISTRIBUTIONS:
        raise OptionError(
            "variance_scaling: unknown distribution %r. Use %s." % (distribution, ", ".join(_DISTRIBUTIONS))
        )

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        fan_in, fan_out = fans(shape)
        n = max(1.0, {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2.0}[mode])
        variance = scale / n
        if distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return np.asarray(rng.uniform(-limit, limit, shape))
        if distribution == "untruncated_normal":
            return np.asarray(rng.normal(0.0, math.sqrt(variance), shape))
        # Cutting at two standard deviations shrinks the spread by this constant.
        return truncated_normal(0.0, math.sqrt(variance) / 0.87962566103423978)(shape, rng)

    return Drawn(draw)


def orthogonal(gain: float = 1.0) -> Drawn:
    """Draw orthogonal rows or columns, with all axes but the last flattened to one (Saxe et al. 2014)."""

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        rows, cols = int(np.prod(shape[:-1])), shape[-1]
        q, r = np.linalg.qr(rng.standard_normal((max(rows, cols), min(rows, cols))))
        matrix: NDArray[Any] = q * np.sign(np.diag(r))
        return gain * (matrix.T if rows < cols else matrix).reshape(shape)

    return Drawn(draw, (lambda rank: rank >= 2, "the orthogonal initialiser needs a matrix"))


def identity(gain: float = 1.0) -> Drawn:
    """Put ``gain`` on the diagonal of a matrix, 0 elsewhere."""
    return Drawn(
        lambda shape, rng: gain * np.eye(shape[0], shape[1]),
        (lambda rank: rank == 2, "the identity initialiser needs a matrix"),
    )


def fans(shape: tuple[int, ...]) -> tuple[float, float]:
    """Return (number of inputs, number of outputs) of a parameter."""
    if not shape:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    field = float(np.prod(shape[:-2]))
    return field * shape[-2], field * shape[-1]


def seeded(name: str, arguments: Mapping[str, Any], seed: int, plain: Drawn) -> FromTensorFlow:
    """Return the initialiser of TensorFlow 1 with a seed.

    :param name: in `tf.compat.v1.initializers`
    """
    options = dict(arguments, seed=seed)
    return FromTensorFlow(lambda: getattr(tf.compat.v1.initializers, name)(**options), True, plain)
