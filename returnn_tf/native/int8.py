"""Products of float rows with matrices of int8."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.native.after_product import NOTHING, AfterProduct
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf

#: Steps of the depth that are stored together: see ``native_ops/int8/int8.h``.
GROUP = 4
#: What is added to a number, so that it is stored as uint8.
OFFSET = 128
#: The largest absolute value of a number.
MOST = 127


def int8_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("int8", self_test)


def native_int8_product(
    ops: Any,
    x: tf.Tensor,
    numbers: tf.Tensor,
    scales: tf.Tensor,
    *,
    after: AfterProduct = NOTHING,
) -> tf.Tensor:
    """Round each row of x to int8 and multiply it, and compute what follows, in float32, without a gradient.

    :param ops: what `int8_ops` returned
    :param x: [..., depth]
    :param numbers: uint8 [ceil(columns / 16), ceil(depth / 4), 16, 4], see ``native_ops/int8/int8.h``
    :param scales: [columns]
    :return: [..., columns]
    """
    y: tf.Tensor = ops.rtf_int8_product(x=x, w=numbers, scales=scales, **after.arguments())
    return y


@register_op(
    "int8",
    kernels=("int8/int8_cpu.cc",),
    bindings=("int8/int8_op.cc",),
)
def self_test(ops: Any) -> None:
    """Compare with integers of numpy, bit by bit.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    for rows, groups, panels in ((1, 1, 1), (17, 23, 5)):
        x = rng.normal(0, 1, (rows, groups * GROUP)).astype("float32")
        w = rng.randint(-MOST, MOST + 1, (panels, groups, 16, GROUP))
        scales = rng.uniform(0.001, 0.01, panels * 16).astype("float32")
        largest = np.abs(x).max(axis=1, keepdims=True)
        rounded = np.rint(x * (np.float32(MOST) / largest)).astype("int64")
        sums = np.einsum("rgi,pgci->rpc", rounded.reshape([rows, groups, GROUP]), w).reshape([rows, -1])
        expected = sums.astype("float32") * (largest / np.float32(MOST) * scales)
        y = native_int8_product(ops, tf.constant(x), tf.constant(w + OFFSET, tf.uint8), tf.constant(scales))
        if (y.numpy() != expected).any():
            raise NativeOpError("the product with a matrix of int8 that was compiled is wrong")
        after = AfterProduct(tf.constant(scales), tf.constant(expected), relu=True)
        y = native_int8_product(
            ops, tf.constant(x), tf.constant(w + OFFSET, tf.uint8), tf.constant(scales), after=after
        )
        if not np.allclose(y, expected + np.maximum(expected + scales, 0), rtol=1e-5):
            raise NativeOpError("what follows the product with a matrix of int8 that was compiled is wrong")
