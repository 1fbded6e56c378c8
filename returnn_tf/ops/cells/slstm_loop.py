"""The sLSTM over all frames, with a hand-written gradient.

What does not depend on the frame after is computed for all frames at once: the backward loop only multiplies the
gradients of c, n and h by coefficients, and its matrix product is the only one. The gradient of the weights is a single
product after it.

The gradient by the stabiliser m needs no loop. h depends on c, n and m only through ``c exp(m)`` and ``n exp(m)``, so
its gradients satisfy ``dm = c dc + n dn``. What the gradients of a last state add to ``dm - c dc - n dn`` is passed on
unchanged from frame to frame, up to the one whose input gate i determined m.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

TINY = 1e-30
"""Limit of the normaliser, which is 0 only where no input gate has ever been open."""


def slstm_loop(
    z: tf.Tensor, w_re: tf.Tensor, state: Sequence[tf.Tensor], *, exp_forget: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Run an sLSTM over the rows of all heads: row ``j batch + b`` is head j of sequence b.

    There is no mask: frames after the end of a sequence are computed like all others, and the caller must not use them.

    :param z: projected input, with bias [time, rows, 4 d], gates i, f, z, o
    :param w_re: recurrent weights [heads, d, 4 d]
    :param state: initial c, n, m, h [rows, d]
    :param exp_forget: the forget gate is an exponential function, not a sigmoid
    :return: c, n, m, h [time + 1, rows, d], where entry 0 is the initial state
    """
    d = w_re.shape[1]

    @custom_gradient
    def loop(z: tf.Tensor, w_re: tf.Tensor, *state: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        *states, gates = _forward(z, w_re, state, exp_forget)

        def gradient(*grads: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dz, first = _backward(gates, states, w_re, grads, exp_forget)
            rows = (_of_heads(x, w_re.shape[0]) for x in (states[3][:-1], dz))
            return dz, tf.matmul(*rows, transpose_a=True), *first

        return tuple(states), gradient

    c, n, m, h = loop(z, w_re, *state)
    for part in (c, n, m, h):
        part.set_shape([None, z.shape[1], d])
    return c, n, m, h


def _product(rows: tf.Tensor, weights: tf.Tensor, *, transposed: bool = False) -> tf.Tensor:
    """Multiply the rows [heads * batch, in] with the weights [heads, in, out] of their heads."""
    heads = weights.shape[0]
    if heads == 1:
        return tf.matmul(rows, weights[0], transpose_b=transposed)
    product = tf.matmul(tf.reshape(rows, [heads, -1, rows.shape[-1]]), weights, transpose_b=transposed)
    return tf.reshape(product, [-1, product.shape[-1]])


def _of_heads(x: tf.Tensor, heads: int) -> tf.Tensor:
    """Turn [time, heads * batch, k] into [heads, time * batch, k]."""
    width = x.shape[-1]
    if heads == 1:
        return tf.reshape(x, [1, -1, width])
    by_head = tf.reshape(x, tf.stack([tf.shape(x)[0], heads, -1, width]))
    return tf.reshape(tf.transpose(by_head, [1, 0, 2, 3]), [heads, -1, width])


def _array(like: tf.Tensor, size: tf.Tensor) -> tf.TensorArray:
    return tf.TensorArray(like.dtype, size, element_shape=[None, like.shape[-1]])


def _unstacked(x: tf.Tensor) -> tf.TensorArray:
    return _array(x, tf.shape(x)[0]).unstack(x)


def _forward(z: tf.Tensor, w_re: tf.Tensor, state: Sequence[tf.Tensor], exp_forget: bool) -> list[tf.Tensor]:
    """Return c, n, m, h [time + 1, rows, d], and the gates before their activations [time, rows, 4 d]."""
    n_frames, rows, d = tf.shape(z)[0], tf.shape(z)[1], w_re.shape[1]
    inputs = _unstacked(z)
    arrays = [_array(part, n_frames + 1).write(0, part) for part in state] + [_array(z, n_frames)]

    def step(t, c, n, m, h, *arrays):  # type: ignore[no-untyped-def]
        gates = inputs.read(t) + _product(h, w_re)
        i, f, z, o = tf.split(gates, 4, axis=1)
        kept = (f if exp_forget else tf.math.log_sigmoid(f)) + m
        m = tf.maximum(kept, i)
        f, i = tf.exp(kept - m), tf.exp(i - m)
        c = f * c + i * tf.tanh(z)
        n = f * n + i
        h = tf.sigmoid(o) * c / tf.maximum(n, TINY)
        *of_states, of_gates = arrays
        written = [array.write(t + 1, part) for array, part in zip(of_states, (c, n, m, h))]
        return (t + 1, c, n, m, h, *written, of_gates.write(t, gates))

    loop = tf.while_loop(lambda t, *_: t < n_frames, step, (0, *state, *arrays), parallel_iterations=1)
    return [stacked(array, [rows, width]) for array, width in zip(loop[5:], [d] * 4 + [4 * d])]


def _backward(
    gates: tf.Tensor, states: Sequence[tf.Tensor], w_re: tf.Tensor, grads: Sequence[tf.Tensor], exp_forget: bool
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the gradients of z and of the initial state from those of all states.

    :param gates: [time, rows, 4 d], before their activations
    :param states: c, n, m, h [time + 1, rows, d]; likewise ``grads``
    """
    n_frames, rows, d = tf.shape(gates)[0], tf.shape(gates)[1], w_re.shape[1]
    c, n, m, _ = states
    dc, dn, dm, dh = grads
    i, f, z, o = tf.split(gates, 4, axis=-1)
    kept = (f if exp_forget else tf.math.log_sigmoid(f)) + m[:-1]
    by_kept = tf.cast(kept >= i, z.dtype)  # it determined m
    slope = tf.ones_like(f) if exp_forget else tf.sigmoid(-f)
    f, i, z, o = tf.exp(kept - m[1:]), tf.exp(i - m[1:]), tf.tanh(z), tf.sigmoid(o)
    inverse = 1 / tf.maximum(n[1:], TINY)
    mean = c[1:] * inverse
    # What is passed on unchanged, see above: from the state after a frame to that before, where kept determined m.
    factor = tf.pad(by_kept, [[0, 1], [0, 0], [0, 0]])
    excess, _ = linear_recurrence(factor, dm - c * dc - n * dn, tf.zeros_like(m[0]), reverse=True)
    coefficients = [
        _unstacked(x)
        for x in (
            o * inverse,  # dc by dh
            o * mean * inverse,  # dn by dh, negative
            f,
            tf.concat([i * z, f * slope * c[:-1], i * (1 - z * z)], axis=-1),  # gates i, f, z by dc
            tf.concat([i, f * slope * n[:-1]], axis=-1),  # gates i, f by dn
            mean * o * (1 - o),  # gate o by dh
            tf.concat([excess[1:] * (1 - by_kept), excess[1:] * by_kept * slope], axis=-1),  # gates i, f
            dc[:-1], dn[:-1], dh[:-1],
        )
    ]  # fmt: skip
    zero = tf.zeros([rows, 4 * d], gates.dtype)
    # Entry 0 stays empty, such that the array can be stacked without any frame.
    dz_array = _array(gates, n_frames + 1).write(0, zero)

    def step(t, dc, dn, dh, dz_array):  # type: ignore[no-untyped-def]
        """Step back over frame ``t``; ``dc, dn, dh`` belong to the state after it."""
        c_by_h, n_by_h, f, by_c, by_n, o_by_h, rest, dc_before, dn_before, dh_before = (
            array.read(t) for array in coefficients
        )
        dc = dc + dh * c_by_h
        dn = dn - dh * n_by_h
        di_df_dz = tf.concat([dc, dc, dc], axis=1) * by_c
        di_df = di_df_dz[:, : 2 * d] + tf.concat([dn, dn], axis=1) * by_n + rest
        dz = tf.concat([di_df, di_df_dz[:, 2 * d :], dh * o_by_h], axis=1)
        dh = dh_before + _product(dz, w_re, transposed=True)
        return t - 1, dc_before + dc * f, dn_before + dn * f, dh, dz_array.write(t + 1, dz)

    last = (n_frames - 1, dc[-1], dn[-1], dh[-1], dz_array)
    _, dc0, dn0, dh0, dz_array = tf.while_loop(lambda t, *_: t >= 0, step, last, parallel_iterations=1)
    dm0 = excess[0] + c[0] * dc0 + n[0] * dn0
    return stacked(dz_array, [rows, 4 * d])[1:], [dc0, dn0, dm0, dh0]
