"""Products of float rows with matrices of bfloat16."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf

#: Steps of the depth that are stored together: see ``native_ops/bfloat16/bfloat16.h``.
GROUP = 2


def bfloat16_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("bfloat16", self_test)


def native_bfloat16_product(ops: Any, x: tf.Tensor, numbers: tf.Tensor, columns: int) -> tf.Tensor:
    """Round x to bfloat16 and multiply it, with sums in float32, without a gradient.

    :param ops: what `bfloat16_ops` returned
    :param x: [..., depth]
    :param numbers: bfloat16 [ceil(columns / 16), ceil(depth / 2), 16, 2], see ``native_ops/bfloat16/bfloat16.h``
    :return: [..., columns]
    """
    y: tf.Tensor = ops.rtf_bfloat16_product(x=x, w=numbers, columns=columns)
    return y


@register_op(
    "bfloat16",
    kernels=("bfloat16/bfloat16_cpu.cc",),
    bindings=("bfloat16/bfloat16_op.cc",),
)
def self_test(ops: Any) -> None:
    """Compare with numpy.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    for rows, groups, panels in ((1, 1, 1), (17, 23, 5)):
        x = rng.normal(0, 1, (rows, groups * GROUP)).astype("float32")
        w = tf.cast(tf.constant(rng.normal(0, 1, (panels, groups, 16, GROUP))), tf.bfloat16)
        rounded = tf.cast(tf.cast(tf.constant(x), tf.bfloat16), tf.float64).numpy().reshape([rows, groups, GROUP])
        expected = np.einsum("rgi,pgci->rpc", rounded, tf.cast(w, tf.float64).numpy()).reshape([rows, -1])
        y = native_bfloat16_product(ops, tf.constant(x), w, panels * 16)
        if np.abs(y.numpy() - expected).max() > 1e-4:
            raise NativeOpError("the product with a matrix of bfloat16 that was compiled is wrong")
