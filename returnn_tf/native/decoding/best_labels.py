"""The best labels of a softmax over many, without probabilities of the others."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.lazy_tf import tf


def best_labels_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("best_labels", self_test)


def native_best_labels(ops: Any, x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Find the highest entries of each row, and what normalises a softmax; in float32, without a gradient.

    :param ops: what `best_labels_ops` returned
    :param x: [rows, labels]
    :param count: at most the number of labels; on a GPU at most 2048
    :return: the highest entries, highest first, and their indices, int32, each [rows, count]; equal ones in their
        order; the log of the sum of ``exp(x - highest)``, [rows]
    """
    found: tuple[tf.Tensor, tf.Tensor, tf.Tensor] = ops.rtf_best_labels(x=x, count=count)
    return found


@register_op(
    "best_labels",
    kernels=("search/best_labels_cpu.cc",),
    bindings=("search/best_labels_op.cc",),
    cuda=("search/best_labels_cuda.cu",),
)
def self_test(ops: Any) -> None:
    """Compare with sorted rows.

    :raises NativeOpError: they differ
    """
    for labels, count in ((5, 5), (64, 1), (1000, 12), (5000, 40)):
        x = np.random.RandomState(labels).randint(-40, 40, (3, labels)).astype("float32") / 4
        values, indices, log_sums = native_best_labels(ops, tf.constant(x), count)
        order = np.argsort(-x, axis=1, kind="stable")[:, :count]
        expected = np.take_along_axis(x, order, axis=1)
        sums = np.log(np.exp(x - expected[:, :1]).sum(axis=1))
        if (
            (indices.numpy() != order).any()
            or (values.numpy() != expected).any()
            or not np.allclose(log_sums, sums, atol=1e-5)
        ):
            raise NativeOpError("the best labels that were compiled are wrong")
