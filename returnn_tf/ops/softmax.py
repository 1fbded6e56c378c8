"""Softmax over a masked subset of entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.util.lazy_tf import tf


def masked_softmax(
    x: Any, mask: Optional[Any], *, axes: Optional[Sequence[int]] = None, log_space: bool = False
) -> Any:
    """Compute the softmax over the last axis, or jointly over several axes.

    :param x: float tensor [...]
    :param mask: bool, broadcasts to ``x``: the entries to include; None: all. The others get exactly 0, in log space
        -inf, even if no entry is included; no gradient flows to them.
    :param log_space: log softmax
    """
    if mask is not None:
        # The lowest number instead of -inf: a row without any entry must not yield NaN.
        x = tf.where(mask, x, tf.constant(x.dtype.min, x.dtype))
    if axes is None:
        y = tf.nn.log_softmax(x) if log_space else tf.nn.softmax(x)
    else:
        y = x - tf.reduce_logsumexp(x, axis=list(axes), keepdims=True)
        y = y if log_space else tf.exp(y)
    if mask is None:
        return y
    return tf.where(mask, y, tf.constant(float("-inf") if log_space else 0, y.dtype))
