"""Maximum or mean over a window that slides along one to three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.ops.dense.convolution import AxisPadding, cut_spatial, pad_spatial
from returnn_tf.util.lazy_tf import tf


def pool(
    x: Any,
    mode: str,
    size: Sequence[int],
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Sequence[AxisPadding],
    mask: Optional[Any] = None,
) -> Any:
    """Compute maximum or mean of the entries in each window, padding excluded.

    :param x: [N, spatial..., channels]
    :param mode: "max" or "avg"
    :param mask: bool, broadcasts to ``x``, with a channel axis of size 1: the entries to include; None: all
    :return: [N, spatial'..., channels]; 0 where the mask excludes a whole window
    """
    if all(k == 1 and s == 1 for k, s in zip(size, strides)):
        return x
    plain = all(d == 1 for d in dilations) and all(p == "same" for p in padding)
    plain = plain and _overlap(size, strides)
    if mode == "max":
        lowest = tf.constant(x.dtype.min, x.dtype)
        if mask is not None:
            x = tf.where(mask, x, lowest)
        if plain:
            y = tf.nn.pool(x, size, "MAX", strides=strides, padding="SAME")
        else:
            x, frames = pad_spatial(x, size, strides, dilations, padding, value=lowest)
            y = cut_spatial(_unpadded(x, "MAX", size, strides, dilations), frames)
        # The lowest number overflows in whatever comes next, and its gradient is NaN even where it does not count.
        return y if mask is None else tf.where(y > lowest, y, tf.zeros_like(y))
    if plain and mask is None:
        return tf.nn.pool(x, size, "AVG", strides=strides, padding="SAME")
    if mask is None and all(p == "valid" for p in padding):
        x, frames = pad_spatial(x, size, strides, dilations, padding)
        return cut_spatial(_unpadded(x, "AVG", size, strides, dilations), frames)
    weights = tf.ones_like(x[..., :1]) if mask is None else tf.cast(mask, x.dtype)
    # Both means are over the whole window, so their quotient is the mean of the unmasked entries.
    parts = []
    for part in (tf.where(weights > 0, x, tf.zeros_like(x)), tf.broadcast_to(weights, tf.shape(x[..., :1]))):
        part, frames = pad_spatial(part, size, strides, dilations, padding)
        parts.append(cut_spatial(_unpadded(part, "AVG", size, strides, dilations), frames))
    return tf.math.divide_no_nan(*parts)


def _unpadded(x: Any, kind: str, size: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """Pool over windows that lie within the array."""
    if (_overlap(size, strides) and all(d == 1 for d in dilations)) or all(s == 1 for s in strides):
        return tf.nn.pool(x, size, kind, strides=strides, padding="VALID", dilations=dilations)
    # TensorFlow takes neither dilations with strides, nor strides larger than the window.
    y = tf.nn.pool(x, size, kind, padding="VALID", dilations=dilations)
    return y[(slice(None),) + tuple(slice(None, None, s) for s in strides)]


def _overlap(size: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether no frame is left out between two windows."""
    return all(stride <= window for stride, window in zip(strides, size))
