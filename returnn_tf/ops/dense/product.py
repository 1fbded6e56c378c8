"""The product of all frames of a batch with a matrix: a native one where there is one, else TensorFlow's."""

from __future__ import annotations

from typing import Callable, Optional

from returnn_tf.util.lazy_tf import tf

Product = Callable[["tf.Tensor", "tf.Tensor", Optional["tf.Tensor"]], "tf.Tensor"]
"""``product(x, weights, bias)``: x [rows, in], weights [in, out], bias [out] or None -> [rows, out]"""


def plain_product(x: tf.Tensor, weights: tf.Tensor, bias: Optional[tf.Tensor] = None) -> tf.Tensor:
    """In plain TensorFlow; see `Product`."""
    y = tf.matmul(x, weights)
    # the gradient of bias_add, unlike that of +, is a plain reduction
    return y if bias is None else tf.nn.bias_add(y, bias)


_of_frames: Product = plain_product


def register_product(product: Product) -> None:
    """``product`` takes over where there are many rows: all frames of all sequences."""
    global _of_frames
    _of_frames = product


def product_of_frames(x: tf.Tensor, weights: tf.Tensor, bias: Optional[tf.Tensor] = None) -> tf.Tensor:
    """By what was registered last; see `Product`."""
    return _of_frames(x, weights, bias)
