"""The identity with a custom gradient."""

from __future__ import annotations

from typing import Any, Callable, Optional

from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def drop_large_gradients(x: Any, limit: float, batch_axis: Optional[int]) -> Any:
    """Return ``x``; the gradient of a sequence is zero if a square of it reaches a limit.

    :param x: float tensor
    :param limit: of the greatest square over all axes but batch
    :param batch_axis: of ``x``; None: the whole gradient is kept or dropped
    """
    axes = [axis for axis in range(x.shape.rank) if axis != batch_axis]

    @custom_gradient
    def identity(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        def gradient(dy: Any) -> Any:
            largest = tf.reduce_max(tf.square(dy), axis=axes, keepdims=True)
            return tf.where(largest < tf.cast(limit, dy.dtype), dy, tf.zeros_like(dy))

        return tf.identity(x), gradient

    return identity(x)
