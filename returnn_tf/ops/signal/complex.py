"""Complex numbers stored as alternating real and imaginary parts."""

from __future__ import annotations

from typing import Any

from returnn_tf.ops.activations import clipped_log
from returnn_tf.ops.frames.shape import sizes_of
from returnn_tf.util.lazy_tf import tf


def from_alternating(x: Any) -> Any:
    """Return ``x[..., 2 * i] + 1j * x[..., 2 * i + 1]``.

    :param x: real [..., 2 * n]
    :return: complex [..., n]
    """
    return tf.complex(x[..., 0::2], x[..., 1::2])


def to_alternating(x: Any) -> Any:
    """Invert `from_alternating`.

    :param x: complex [..., n]
    :return: real [..., 2 * n]
    """
    sizes = sizes_of(x)
    return tf.reshape(tf.stack([tf.math.real(x), tf.math.imag(x)], axis=-1), sizes[:-1] + [sizes[-1] * 2])


def log_abs_product(x: Any, kernel: Any) -> Any:
    """Return ``log(max(abs(z W), 1e-20))`` for alternating numbers z; the gradient is 0 where z W is 0.

    :param x: real [..., 2 * n], see `from_alternating`
    :param kernel: real [2, n, filters]: the real and the imaginary part of W
    :return: real [..., filters]
    """
    re, im = x[..., 0::2], x[..., 1::2]
    real = tf.tensordot(re, kernel[0], 1) - tf.tensordot(im, kernel[1], 1)
    imag = tf.tensordot(re, kernel[1], 1) + tf.tensordot(im, kernel[0], 1)
    square = real**2 + imag**2
    positive = square > 0
    # The square root has no gradient at 0, so that it must not be computed there.
    root = tf.sqrt(tf.where(positive, square, tf.ones_like(square)))
    return clipped_log(tf.where(positive, root, tf.zeros_like(root)))
