"""Calls of the native recurrences, and what they need."""

from __future__ import annotations

from typing import Any

from returnn_tf.native import gru_ops, lstm_ops, native_gru, native_lstm
from returnn_tf.util.lazy_tf import tf


def arrays(unit: str, frames: int, batch: int, n: int) -> tuple[Any, ...]:
    """Return z, recurrent weights, states and lengths."""
    shapes = {
        "lstm": [(frames, batch, 4 * n), (n, 4 * n), (batch, n), (batch, n)],
        "gru": [(frames, batch, 3 * n), (n, 2 * n), (n, n), (batch, n)],
    }[unit]
    return (*(tf.fill(shape, 0.01) for shape in shapes), tf.fill([batch], frames))


def outputs(unit: str, *inputs: Any) -> Any:
    """Return h [time, batch, n]."""
    if unit == "lstm":
        return native_lstm(lstm_ops(tf.float32), *inputs)[0]
    return native_gru(gru_ops(tf.float32), *inputs)[0]
