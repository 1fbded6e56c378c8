"""What is done with features: derivatives over time, normalisation, joined frames."""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.errors import shown
from returnn_tf.datasets.core import safe_files

#: Frames to which a polynomial is fitted.
_WIDTH = 9
#: The least standard deviation of "per_seq".
_MIN_DEVIATION = 0.01

#: What a normalisation uses: a number, a vector, or "per_seq".
Norm = Union[float, NDArray[Any], str, None]


@functools.cache
def derivative_weights(order: int) -> NDArray[Any]:
    """Return [9] weights that give the derivative of a polynomial of this degree fitted to 9 frames.

    The derivative of degree ``order`` of such a polynomial is the same everywhere (Savitzky & Golay 1964).
    """
    times = np.arange(_WIDTH) - _WIDTH // 2
    fit = np.linalg.pinv(np.vander(times.astype(np.float64), order + 1, increasing=True))
    weights: NDArray[Any] = fit[order] * math.factorial(order)
    return weights


def with_derivatives(features: NDArray[Any], most: int) -> NDArray[Any]:
    """Append derivatives of the orders 1 to ``most`` over time, each of the features themselves.

    :param features: [time, ...]; the last axis grows to ``(most + 1)`` times its size
    :raises DataError: there are fewer than 9 frames
    """
    num_frames = len(features)
    if num_frames < _WIDTH:
        raise DataError(
            "with_delta needs %d frames, but the audio has only %d. Leave it out, or switch with_delta off"
            % (_WIDTH, num_frames)
        )
    parts = [features]
    for order in range(1, most + 1):
        inner = sum(
            weight * features[i : num_frames - _WIDTH + 1 + i].astype(np.float64)
            for i, weight in enumerate(derivative_weights(order))
        )
        # the first and last frames belong to the first and last fit
        edges = [(_WIDTH // 2, _WIDTH // 2)] + [(0, 0)] * (features.ndim - 1)
        parts.append(np.pad(inner, edges, mode="edge").astype(np.float32))
    return np.concatenate(parts, axis=-1)


def check_norm(option: str, value: Any, dim: int, *, joined: bool, where: str) -> Norm:
    """Check the option ``norm_mean`` or ``norm_std_dev``, and read its file.

    :param dim: of the features, after derivatives
    :param joined: whether frames will be joined, which fits no vector
    :param where: how errors begin
    :return: as `normalized` takes it
    """
    if value is None or (isinstance(value, str) and value == "per_seq"):
        return value
    name = "%s: option %r" % (where, option)
    if isinstance(value, str):
        try:
            vector, name = read_vector(value), "%s (file %r)" % (name, value)
        except DataError as exc:
            raise DataError("%s: %s" % (name, exc)) from None
    elif isinstance(value, (np.ndarray, numbers.Real)):
        vector = np.asarray(value, np.float32)
    else:
        raise ConfigError(
            "%s must be a number, 'per_seq', the name of a file with a vector, or an array, got %s (%s)"
            % (name, shown(value), type(value).__name__)
        )
    if not np.all(np.isfinite(vector)):
        raise ConfigError("%s holds values that are not finite" % name)
    if option == "norm_std_dev" and not np.all(vector > 0):
        raise ConfigError("%s divides, so that it must be above 0" % name)
    if vector.ndim == 0:
        return float(vector)
    if joined:
        raise ConfigError(
            "%s is a vector, which does not fit join_frames, since it is applied to the frames before they are joined. "
            "Use a number or 'per_seq'" % name
        )
    if vector.shape != (dim,):
        raise ConfigError(
            "%s has the shape %s, but the features have dim %d (with derivatives)" % (name, vector.shape, dim)
        )
    return vector


def read_vector(path: str) -> NDArray[Any]:
    """Read a text file of numbers as float32 [n]; DataError if it is none."""
    text = safe_files.read_text(path)
    try:
        values = [float(word) for line in text.splitlines() for word in line.split("#")[0].split()]
    except ValueError as exc:
        raise DataError("file %r must hold numbers, one per line: %s" % (path, exc)) from exc
    return np.array(values, np.float32)


def normalized(features: NDArray[Any], mean: Norm, deviation: Norm) -> NDArray[Any]:
    """Subtract a mean, and divide by a standard deviation; "per_seq": those of each feature over time.

    :param features: [time, ..., dim], float32
    """
    if isinstance(mean, str):
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    if mean is not None:
        features = features - np.asarray(mean, np.float32)
    if isinstance(deviation, str):
        deviation = np.maximum(features.std(axis=0, dtype=np.float64), _MIN_DEVIATION).astype(np.float32)
    if deviation is not None:
        features = features / np.asarray(deviation, np.float32)
    return features


def joined(features: NDArray[Any], count: int) -> NDArray[Any]:
    """Join neighbouring frames: [time, ..., dim] -> [ceil(time / count), ..., count * dim].

    The last frame is repeated to fill up. With channels this is a reshaping of numbers in their order, which does not
    keep the channels apart: trained models expect it.
    """
    missing = -len(features) % count
    if missing:
        features = np.concatenate([features, np.repeat(features[-1:], missing, axis=0)])
    return features.reshape(len(features) // count, *features.shape[1:-1], count * features.shape[-1])
