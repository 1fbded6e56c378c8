"""Derivatives of what a network computes, and the identity with a custom gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.config.errors import ConfigError
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def derivatives(y: Any, xs: Sequence[Any]) -> list[Any]:
    """Return the derivatives of a scalar, see `tf.gradients`; None for what it does not depend on.

    :raises ConfigError: an op has none: with losses on gradients, most often one that computes a gradient
    """
    try:
        found: list[Any] = tf.gradients(y, xs)
    except LookupError as exc:
        if type(exc) is not LookupError:  # an error in the code of a gradient, such as KeyError
            raise
        raise ConfigError(
            "An op of the network has no gradient, or no second one, which is needed by losses on the layer "
            "'gradient', tikhonov_regularization, synthetic_gradient and maximize_grad_norm; the loss 'ctc' has none: "
            "%s Do without that loss or setting, or replace the layer or loss with the op."
            % str(exc).partition(" In general")[0],
            topic="gradients",
        ) from exc
    return found


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
