"""Operands and results of products under the setting mixed_precision; without it, they stay as they are."""

from __future__ import annotations

from typing import Any

from returnn_tf.tensor.precision import product_dtype
from returnn_tf.util.lazy_tf import tf


def reduced(x: Any) -> Any:
    """Return a float32 tensor in the type of products."""
    dtype = product_dtype()
    return x if dtype is None or x.dtype != tf.float32 else tf.cast(x, dtype)


def full(x: Any) -> Any:
    """Return the result of a product in float32."""
    dtype = product_dtype()
    return x if dtype is None or x.dtype.name != dtype else tf.cast(x, tf.float32)
