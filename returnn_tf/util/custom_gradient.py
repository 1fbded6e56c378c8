"""`tf.custom_gradient` as a typed decorator, as TensorFlow does not annotate it; gradients of ops, registered once."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional, cast

from returnn_tf.util.lazy_tf import tf


def custom_gradient(func: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Decorate a function that returns (value, function of the gradient), so that it returns the value.

    See `tf.custom_gradient`.
    """
    return cast(Callable[..., Any], tf.custom_gradient(func))


_registered: set[str] = set()
_lock = threading.Lock()  # graphs may be traced in several threads, and an op is registered once


def register_once(**gradients: Optional[Callable[..., Any]]) -> None:
    """Register the gradients of ops by their types, where that is not done yet; see `tf.RegisterGradient`.

    :param gradients: None: the op has none, see `tf.no_gradient`
    """
    with _lock:
        for name, gradient in gradients.items():
            if name not in _registered:
                if gradient is None:
                    tf.no_gradient(name)
                else:
                    tf.RegisterGradient(name)(gradient)
                _registered.add(name)
