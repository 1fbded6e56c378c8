"""The cells of an SRU over all frames: a loop forwards, and a gradient in parallel.

Each cell depends on the one before elementwise, so the gradient of all cells is a linear recurrence, with the factors
``dc[t+1] / dc[t]``. The forward loop keeps the cells only.
"""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def sru_loop(x: tf.Tensor, z: tf.Tensor, v: tf.Tensor, c0: tf.Tensor) -> tf.Tensor:
    """Compute ``f = sigmoid(z_t + v c);  c = f c + (1 - f) x_t`` over all frames.

    There is no mask: frames after the end of a sequence are computed like all others.

    :param x: [time, batch, n]; likewise ``z``, the forget gate before its activation
    :param v: [n]
    :param c0: [batch, n]
    :return: c [time + 1, batch, n], where entry 0 is ``c0``
    """

    @custom_gradient
    def run(x: tf.Tensor, z: tf.Tensor, v: tf.Tensor, c0: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        c_all = _forward(x, z, v, c0)

        def gradient(dc_all: tf.Tensor) -> tuple[tf.Tensor, ...]:
            c = c_all[:-1]
            f = tf.sigmoid(z + v * c)
            slope = f * (1 - f) * (c - x)  # of the next cell, by z
            factor = tf.pad(f + slope * v, [[0, 1], [0, 0], [0, 0]])  # of the next cell, by this one
            g, g0 = linear_recurrence(factor, dc_all, tf.zeros_like(c0), reverse=True)
            g = g[1:]
            dz = g * slope
            return g * (1 - f), dz, tf.reduce_sum(dz * c, axis=[0, 1]), g0

        return c_all, gradient

    c_all: tf.Tensor = run(x, z, v, c0)
    c_all.set_shape([None, *c0.shape])
    return c_all


def _forward(x: tf.Tensor, z: tf.Tensor, v: tf.Tensor, c0: tf.Tensor) -> tf.Tensor:
    n_frames, shape = tf.shape(x)[0], c0.shape
    xs, zs = (tf.TensorArray(a.dtype, n_frames, element_shape=shape).unstack(a) for a in (x, z))
    cells = tf.TensorArray(x.dtype, n_frames + 1, element_shape=shape).write(0, c0)

    def frame(t: tf.Tensor, c: tf.Tensor, cells: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        x_t = xs.read(t)
        c = x_t + tf.sigmoid(zs.read(t) + v * c) * (c - x_t)
        return t + 1, c, cells.write(t + 1, c)

    loop = tf.while_loop(lambda t, *_: t < n_frames, frame, (0, c0, cells), parallel_iterations=1)
    return stacked(loop[2], [tf.shape(c0)[0], shape[-1]])
