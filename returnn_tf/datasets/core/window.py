"""Stacking neighbouring frames: the option ``window``."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.core.data_spec import DataSpec


def stack_frames(value: NDArray[Any], window: int) -> NDArray[Any]:
    """Stack the frames t - w//2 .. t + w//2 of each frame t, zeros outside of the sequence.

    :param value: [time, dim]
    :param window: odd
    :return: [time, window * dim]
    """
    if value.ndim != 2:
        raise DataError("option 'window' is for data of shape [time, dim], but this has %d axes" % value.ndim)
    side = window // 2
    padded = np.pad(value, ((side, side), (0, 0)))
    return np.concatenate([padded[i : i + len(value)] for i in range(window)], axis=1)


def window_spec(spec: DataSpec, window: int, owner: str) -> DataSpec:
    """Return the format of key "data" after ``stack_frames``."""
    if spec.ndim != 2:
        raise ConfigError(
            "%s: option 'window' needs dense data [time, dim], but 'data' has %d axes" % (owner, spec.ndim)
        )
    return dataclasses.replace(spec, dim=spec.dim * window, shape=(spec.dim * window,))
