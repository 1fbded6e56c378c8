"""Operands and results of products under the setting mixed_precision; without it, they stay as they are."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.util.lazy_tf import tf


def reduced(x: Any, dtype: Optional[str]) -> Any:
    """Return a float32 tensor in the type of products.

    :param dtype: `Semantics.product_dtype`
    """
    return x if dtype is None or x.dtype != tf.float32 else tf.cast(x, dtype)


def full(x: Any, dtype: Optional[str]) -> Any:
    """Return the result of a product in float32.

    :param dtype: `Semantics.product_dtype`
    """
    return x if dtype is None or x.dtype.name != dtype else tf.cast(x, tf.float32)
