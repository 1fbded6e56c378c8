"""Parameter initialisers as numpy functions ``(shape, generator) -> array``, by their names in configs.

No TensorFlow, so that a wrong name is found while planning and the values depend only on the seed.
Fans: the last two axes are (in, out), all before them are a receptive field (Glorot & Bengio 2010; He et al. 2015).
"""

from __future__ import annotations

import ast
import math
from typing import Any, Callable

import numpy
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, did_you_mean

Initializer = Callable[[tuple[int, ...], numpy.random.Generator], NDArray[Any]]


def constant(value: Any = 0.0) -> Initializer:
    """Fill with ``value``, a number or an array of the same shape."""
    return lambda shape, rng: numpy.broadcast_to(numpy.asarray(value), shape)


def random_normal(mean: float = 0.0, stddev: float = 0.05) -> Initializer:
    """Draw from a normal distribution."""
    return lambda shape, rng: rng.normal(mean, stddev, shape)


def truncated_normal(mean: float = 0.0, stddev: float = 0.05) -> Initializer:
    """Draw from a normal distribution, redrawing values beyond two standard deviations."""

    def init(shape: tuple[int, ...], rng: numpy.random.Generator) -> NDArray[Any]:
        values = rng.standard_normal(shape)
        while True:
            bad = numpy.abs(values) > 2.0
            count = int(bad.sum())
            if not count:
                return mean + stddev * values
            values[bad] = rng.standard_normal(count)

    return init


def random_uniform(minval: float = -0.05, maxval: float = 0.05) -> Initializer:
    """Draw from the uniform distribution in [minval, maxval)."""
    return lambda shape, rng: rng.uniform(minval, maxval, shape)


def variance_scaling(scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal") -> Initializer:
    """Draw with variance ``scale / n``.

    n is the number of inputs, outputs, or their mean (``fan_in``, ``fan_out``, ``fan_avg``).
    """
    if mode not in ("fan_in", "fan_out", "fan_avg"):
        raise ConfigError("variance_scaling: unknown mode %r. Use fan_in, fan_out or fan_avg." % mode)

    def init(shape: tuple[int, ...], rng: numpy.random.Generator) -> NDArray[Any]:
        fan_in, fan_out = fans(shape)
        n = max(1.0, {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2.0}[mode])
        variance = scale / n
        if distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return rng.uniform(-limit, limit, shape)
        if distribution == "untruncated_normal":
            return rng.normal(0.0, math.sqrt(variance), shape)
        # Cutting at two standard deviations shrinks the spread by this constant.
        return truncated_normal(0.0, math.sqrt(variance) / 0.87962566103423978)(shape, rng)

    return init


def orthogonal(gain: float = 1.0) -> Initializer:
    """Draw orthogonal rows or columns, with all axes but the last flattened to one (Saxe et al. 2014)."""

    def init(shape: tuple[int, ...], rng: numpy.random.Generator) -> NDArray[Any]:
        if len(shape) < 2:
            raise ConfigError("The orthogonal initialiser needs a matrix, not the shape %s." % (shape,))
        rows, cols = int(numpy.prod(shape[:-1])), shape[-1]
        q, r = numpy.linalg.qr(rng.standard_normal((max(rows, cols), min(rows, cols))))
        matrix: NDArray[Any] = q * numpy.sign(numpy.diag(r))
        return gain * (matrix.T if rows < cols else matrix).reshape(shape)

    return init


def identity(gain: float = 1.0) -> Initializer:
    """Put ``gain`` on the diagonal of a matrix, 0 elsewhere."""
    return lambda shape, rng: gain * numpy.eye(shape[0], shape[1])


def fans(shape: tuple[int, ...]) -> tuple[float, float]:
    """Return (number of inputs, number of outputs) of a parameter."""
    if not shape:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    field = float(numpy.prod(shape[:-2]))
    return field * shape[-2], field * shape[-1]


def _scaled(scale: float, mode: str, distribution: str) -> Callable[..., Initializer]:
    return lambda: variance_scaling(scale, mode, distribution)


_INITIALIZERS: dict[str, Callable[..., Initializer]] = {
    "zeros": lambda: constant(0.0),
    "ones": lambda: constant(1.0),
    "constant": constant,
    "random_normal": random_normal,
    "truncated_normal": truncated_normal,
    "random_uniform": random_uniform,
    "uniform": random_uniform,
    "variance_scaling": variance_scaling,
    "orthogonal": orthogonal,
    "identity": identity,
    "glorot_uniform": _scaled(1.0, "fan_avg", "uniform"),
    "xavier": _scaled(1.0, "fan_avg", "uniform"),
    "glorot_normal": _scaled(1.0, "fan_avg", "truncated_normal"),
    "he_uniform": _scaled(2.0, "fan_in", "uniform"),
    "he_normal": _scaled(2.0, "fan_in", "truncated_normal"),
    "lecun_uniform": _scaled(1.0, "fan_in", "uniform"),
    "lecun_normal": _scaled(1.0, "fan_in", "truncated_normal"),
}


def get_initializer(spec: Any) -> Initializer:
    """Return the initialiser for a config value.

    :param spec: number, array, function, name with or without "_initializer", or an expression such as
        ``"random_normal_initializer(mean=0.0, stddev=0.1)"``
    :raises ConfigError: unknown name or arguments
    """
    if callable(spec):
        function: Initializer = spec
        return function
    if isinstance(spec, (bool, int, float, numpy.ndarray, numpy.number)):
        return constant(spec)
    if not isinstance(spec, str):
        raise ConfigError("An initialiser is a number, a name or an expression, not %r." % (spec,))
    name, args, kwargs = _parse_call(spec)
    key = name.replace("_initializer", "").lower()
    key = {
        "variancescaling": "variance_scaling",
        "randomnormal": "random_normal",
        "glorotuniform": "glorot_uniform",
        "randomuniform": "random_uniform",
        "truncatednormal": "truncated_normal",
    }.get(key, key)
    if key not in _INITIALIZERS:
        raise ConfigError("Unknown initialiser %r. %s" % (name, did_you_mean(key, _INITIALIZERS)))
    kwargs = {k: v for k, v in kwargs.items() if k not in ("dtype", "seed")}
    try:
        return _INITIALIZERS[key](*args, **kwargs)
    except TypeError as exc:
        raise ConfigError("Initialiser %r: %s" % (spec, exc)) from None


def _parse_call(text: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Parse ``name(1, a=2)`` into (name, args, kwargs); arguments must be literals."""
    try:
        tree: Any = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Call):
            args = tuple(ast.literal_eval(a) for a in tree.args)
            kwargs = {k.arg or "": ast.literal_eval(k.value) for k in tree.keywords}
            tree = tree.func
        else:
            args, kwargs = (), {}
        name = tree.attr if isinstance(tree, ast.Attribute) else tree.id
    except (SyntaxError, ValueError, AttributeError):
        raise ConfigError(
            "Initialiser %r is neither a name nor a call with plain numbers, e.g. 'glorot_uniform' or "
            "'random_normal_initializer(stddev=0.1)'." % text
        ) from None
    return name, args, kwargs
