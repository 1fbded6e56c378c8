"""The gradient of recurrent weights: one product over all frames."""

from __future__ import annotations

from returnn_tf.native.product import large_ops, matmul, native_matmul
from returnn_tf.util.lazy_tf import tf


def weight_gradient(
    h: tf.Tensor, h0: tf.Tensor, dz: tf.Tensor, lengths: tf.Tensor, reverse: bool, *, rounded: bool = False
) -> tf.Tensor:
    """Sum the outer products of the previous output and the gradient of the gate inputs over all frames.

    Computed as two products on slices, which avoids copying h with h0 as its first frame. Padded frames are 0 in both
    arrays and add nothing.

    :param h: [time, batch, n]
    :param h0: [batch, n]
    :param dz: [time, batch, m]
    :param lengths: int32 [batch]
    :param reverse: each sequence ran from its last to its first frame
    :param rounded: see `outer_sum`
    :return: [n, m]
    """
    if not reverse:
        first = dz[:1]  # empty if there are no frames
        of_first = outer_sum(tf.tile(h0[None], [tf.shape(first)[0], 1, 1]), first)
        return outer_sum(h[:-1], dz[1:], rounded=rounded) + of_first
    n_frames = tf.shape(dz)[0]
    starts = tf.one_hot(lengths - 1, n_frames, axis=0, dtype=dz.dtype)  # [time, batch]
    return outer_sum(h[1:], dz[:-1], rounded=rounded) + outer_sum(h0, tf.einsum("tb,tbg->bg", starts, dz))


def outer_sum(left: tf.Tensor, right: tf.Tensor, *, rounded: bool = False) -> tf.Tensor:
    """Sum the outer products of the last axes, [..., n] and [..., m], over all other axes: [n, m].

    :param rounded: round them to bfloat16 if the native op does, see `returnn_tf.native.product.rounds`
    """

    def rows(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [-1, x.shape[-1] or tf.shape(x)[-1]])

    left, right = rows(left), rows(right)
    ops = rounded and large_ops(left, right, transpose_a=True, product_dtype="bfloat16")
    if ops:
        return native_matmul(ops, left, right, transpose_a=True, rounded=True)
    return matmul(left, right, transpose_a=True)
