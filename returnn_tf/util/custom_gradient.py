"""`tf.custom_gradient` as a typed decorator: TensorFlow does not annotate it."""

from __future__ import annotations

from typing import Any, Callable, cast

from returnn_tf.util.lazy_tf import tf


def custom_gradient(func: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Decorate a function that returns (value, function of the gradient), so that it returns the value.

    See `tf.custom_gradient`.
    """
    return cast(Callable[..., Any], tf.custom_gradient(func))
