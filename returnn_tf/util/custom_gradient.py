"""`tf.custom_gradient` as a typed decorator, as TensorFlow does not annotate it; gradients of ops, registered once."""

from __future__ import annotations

from typing import Any, Callable, cast

from returnn_tf.util.lazy_tf import tf


def custom_gradient(func: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Decorate a function that returns (value, function of the gradient), so that it returns the value.

    See `tf.custom_gradient`.
    """
    return cast(Callable[..., Any], tf.custom_gradient(func))


_registered: set[str] = set()


def register_once(**gradients: Callable[..., Any]) -> None:
    """Register the gradients of ops by their types, where that is not done yet; see `tf.RegisterGradient`."""
    for name, gradient in gradients.items():
        if name not in _registered:
            _registered.add(name)
            tf.RegisterGradient(name)(gradient)
