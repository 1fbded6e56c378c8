"""Maximum or mean over a window that slides along one to three axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

from returnn_tf.ops.dense.convolution import AxisPadding, cut_spatial, ends_of_windows, pad_spatial
from returnn_tf.ops.frames.empty_axes import without_empty_axes
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

    def pooled(x: Any, kind: str, *, plain: bool = False, value: Any = 0) -> Any:
        run = partial(_pooled, kind, size, strides, dilations, None if plain else padding, value)
        return without_empty_axes(x, ends_of_windows(strides, padding), run)

    if mode == "max":
        lowest = tf.constant(x.dtype.min, x.dtype)
        if mask is not None:
            x = tf.where(mask, x, lowest)
        y = pooled(x, "MAX", plain=plain, value=lowest)
        # The lowest number overflows in whatever comes next, and its gradient is NaN even where it does not count.
        return y if mask is None else tf.where(y > lowest, y, tf.zeros_like(y))
    if mask is None and (plain or all(p == "valid" for p in padding)):
        return pooled(x, "AVG", plain=plain)
    weights = tf.ones_like(x[..., :1]) if mask is None else tf.cast(mask, x.dtype)
    # Both means are over the whole window, so their quotient is the mean of the unmasked entries.
    parts = (tf.where(weights > 0, x, tf.zeros_like(x)), tf.broadcast_to(weights, tf.shape(x[..., :1])))
    return tf.math.divide_no_nan(*(pooled(part, "AVG") for part in parts))


def _pooled(
    kind: str,
    size: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Optional[Sequence[AxisPadding]],
    value: Any,
    x: Any,
) -> Any:
    """Pool over windows; those that reach into the padding see a value, without ``padding`` their other entries."""
    if padding is None:
        return tf.nn.pool(x, size, kind, strides=strides, padding="SAME")
    x, frames = pad_spatial(x, size, strides, dilations, padding, value=value)
    if (_overlap(size, strides) and all(d == 1 for d in dilations)) or all(s == 1 for s in strides):
        y = tf.nn.pool(x, size, kind, strides=strides, padding="VALID", dilations=dilations)
    else:  # TensorFlow takes neither dilations with strides, nor strides larger than the window.
        y = tf.nn.pool(x, size, kind, padding="VALID", dilations=dilations)
        y = y[(slice(None),) + tuple(slice(None, None, s) for s in strides)]
    return cut_spatial(y, frames)


def _overlap(size: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether no frame is left out between two windows."""
    return all(stride <= window for stride, window in zip(strides, size))
