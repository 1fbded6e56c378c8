"""sLSTM of xLSTM: exponential gates, normalised and stabilised, with block-diagonal recurrent weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import at_least, option
from returnn_tf.native.scans.slstm import native_slstm, slstm_ops
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.cells.base import Cell, CellFrames, Kernel, Params, State
from returnn_tf.ops.cells.params import CellParam, by_head, input_part, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.time_axis import state_at, zero_padding
from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.tensor.parts import Parts, equal_parts
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


@register_cell("slstm")
class SLstm(Cell):
    """sLSTM (Beck et al. 2024, xLSTM, arXiv 2405.04517), with the states c, n, m, h.

    ``i, f, z, o = split(x W + h W_re + b);  z = tanh(z);  o = sigmoid(o);  l = log sigmoid(f)``
    ``m' = max(l + m, i);  f = exp(l + m - m');  i = exp(i - m')``
    ``c' = f c + i z;  n' = f n + i;  h' = o c' / n'``

    With the option ``forget_gate`` "exp" it is ``l = f``. The normaliser n sums up the input gates; the stabiliser m
    keeps the exponential functions in range and cancels out in h. A state that is given has n > 0, or c = n = 0.

    ``h W_re`` is a product for each head: head j sees only the columns of h, and only fills those of each gate, from
    ``j d`` to ``(j + 1) d``, where ``d = n / num_heads``. A frame depends on the one before through a product, so
    frames are computed one after the other.

    Weights: ``W`` [in, 4 n], ``W_re`` [num_heads, d, 4 d] and ``b`` [4 n], columns i, f, z, o each. Initial values:
    W_re uniform as a matrix [d, 4 d] by the rule of Glorot and Bengio; b is 0, of f linear from 3 to 6 in each head.
    """

    state_keys = ("c", "n", "m", "h")
    gates = 4

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        num_heads: int = option(
            1, help="number of blocks of the recurrent weights; it divides n_out", check=at_least(1)
        )
        forget_gate: str = option("sigmoid", help="function of the forget gate", choices=("sigmoid", "exp"))

    def __init__(self, n_out: int, in_dim: int, **kwargs: Any) -> None:
        super().__init__(n_out, in_dim, **kwargs)
        heads = self.opts.num_heads
        if n_out % heads:
            raise OptionError(
                "%s: n_out %d of unit 'slstm' is not divisible by num_heads %d. Set n_out to %d, or another num_heads."
                % (self.where, n_out, heads, -(-n_out // heads) * heads)
            )

    def param_specs(self) -> list[CellParam]:
        """Declare the recurrent weights of each head, and ``W`` and ``b`` unless the input is already projected."""
        n, heads = self.n_out, self.opts.num_heads
        d = n // heads
        of_head = (by_head(heads, 1), whole(d), equal_parts(4 * d, d, "gate"))
        recurrent = CellParam("W_re", (heads, d, 4 * d), "recurrent", _glorot_of_blocks, of_head)
        if not self.input_projection:
            return [recurrent]
        bias = np.zeros([4, heads, d])
        bias[1] = np.linspace(3.0, 6.0, d)
        gates = by_head(heads, d, *"ifzo")
        return [
            CellParam("W", (self.in_dim, 4 * n), "forward", axes=(input_part(self.in_dim), gates)),
            recurrent,
            CellParam("b", (4 * n,), "bias", bias.reshape(-1), (gates,)),
        ]

    def output_parts(self) -> Parts:
        """Return the heads."""
        return by_head(self.opts.num_heads, self.n_out // self.opts.num_heads)

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``W`` and ``b``; None if the input is already projected."""
        return (params["W"], params["b"]) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the recurrent weights."""
        return [params["W_re"]]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Update cell and normaliser by exponential gates, stabilised by their maximum."""
        c, n, m, h = state
        i, f, z, o = tf.split(z + self._recurrent(h, weights[0]), 4, axis=-1)
        kept = (f if self.opts.forget_gate == "exp" else tf.math.log_sigmoid(f)) + m
        m = tf.maximum(kept, i)
        f, i = tf.exp(kept - m), tf.exp(i - m)
        c = f * c + i * tf.tanh(z)
        n = f * n + i
        h = tf.sigmoid(o) * c / tf.maximum(n, TINY)
        return h, (c, n, m, h)

    def _recurrent(self, h: tf.Tensor, w_re: tf.Tensor) -> tf.Tensor:
        """Return the product with the recurrent weights [batch, 4 n]."""
        heads, d = w_re.shape[0], w_re.shape[1]
        if heads == 1:
            return tf.matmul(h, w_re[0])
        product = tf.matmul(tf.transpose(tf.reshape(h, [-1, heads, d]), [1, 0, 2]), w_re)
        by_gate = tf.transpose(tf.reshape(product, [heads, -1, 4, d]), [1, 2, 0, 3])
        return tf.reshape(by_gate, [-1, 4 * self.n_out])

    def native_kernel(self, dtype: tf.DType) -> Optional[Kernel]:
        """Return the native sLSTM."""
        is_there = slstm_ops(dtype) is not None
        return self._run_native if is_there and pays(SLSTM_TRIAL, self.n_out // self.opts.num_heads, dtype) else None

    def _run_native(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        """Run the native sLSTM, head by head."""
        z, batch = frames.z, frames.batch
        w_re = params["W_re"]
        heads = w_re.shape[0]

        def split(x: tf.Tensor, parts: int) -> tf.Tensor:
            """Turn [frames, batch, parts n] into [heads, frames, batch, parts d]."""
            if heads == 1:
                return x[None]
            width = x.shape[-1] // heads
            x = tf.reshape(x, tf.stack([-1, batch, parts, heads, width // parts]))
            return tf.reshape(tf.transpose(x, [3, 0, 1, 2, 4]), tf.stack([heads, -1, batch, width]))

        def joined(x: tf.Tensor) -> tf.Tensor:
            """Turn [heads, ..., batch, d] into [..., batch, n]."""
            if heads == 1:
                return x[0]
            rank, n = x.shape.rank, heads * x.shape[-1]
            x = tf.transpose(x, [*range(1, rank - 1), 0, rank - 1])
            return tf.reshape(x, tf.concat([tf.shape(x)[:-2], [n]], axis=0))

        h, *last = native_slstm(
            slstm_ops(z.dtype), split(z, 4), w_re, *(split(part[None], 1)[:, 0] for part in frames.state),
            lengths=frames.ends, reverse=frames.reverse, exp_forget=self.opts.forget_gate == "exp",
            rounded=frames.rounds("slstm", self.product_dtype),
        )  # fmt: skip
        return joined(h), tuple(map(joined, last))

    def loop_kernel(self) -> Optional[Kernel]:
        """Return the loop with its own gradient."""
        return self._run_loop

    def _run_loop(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        """Run the loop over the rows of all heads."""
        w_re = params["W_re"]
        heads = w_re.shape[0]
        of_heads = tuple(_rows(part, heads, 1) for part in frames.state)
        states = slstm_loop(_rows(frames.z, heads, 4), w_re, of_heads, exp_forget=self.opts.forget_gate == "exp")
        # The loop continues after the end of a sequence: its state is the one at its end, not that of the last frame.
        ends = None if frames.lengths is None else tf.tile(frames.lengths, [heads])
        last = tuple(_from_rows(part[-1] if ends is None else state_at(part, ends), heads) for part in states)
        return _from_rows(states[3][1:], heads), last


def _glorot_of_blocks(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    limit = math.sqrt(6 / (shape[-2] + shape[-1]))
    return rng.uniform(-limit, limit, shape)


def _rows(x: tf.Tensor, heads: int, parts: int) -> tf.Tensor:
    """Turn [..., batch, parts * n] into [..., heads * batch, parts * d], where d is n / heads."""
    if heads == 1:
        return x
    leading, width = tf.shape(x)[:-2], x.shape[-1]
    x = tf.reshape(x, [-1, tf.shape(x)[-2], parts, heads, width // (parts * heads)])
    x = tf.transpose(x, [0, 3, 1, 2, 4])
    return tf.reshape(x, tf.concat([leading, [-1, width // heads]], axis=0))


def _from_rows(x: tf.Tensor, heads: int) -> tf.Tensor:
    """Turn [..., heads * batch, d] into [..., batch, n]: the inverse of `_rows` with one part."""
    if heads == 1:
        return x
    leading, d = tf.shape(x)[:-2], x.shape[-1]
    x = tf.reshape(x, tf.stack([-1, heads, tf.shape(x)[-2] // heads, d]))
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), tf.concat([leading, [-1, heads * d]], axis=0))


TINY = 1e-30
"""Limit of the normaliser, which is 0 only where no input gate has ever been open."""


def slstm_loop(
    z: tf.Tensor, w_re: tf.Tensor, state: Sequence[tf.Tensor], *, exp_forget: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Run an sLSTM over the rows of all heads: row ``j batch + b`` is head j of sequence b; the gradient is by hand.

    What does not depend on the frame after is computed for all frames at once: the backward loop only multiplies the
    gradients of c, n and h by coefficients, and its matrix product is the only one. The gradient of the weights is a
    single product after it.

    The gradient by the stabiliser m needs no loop. h depends on c, n and m only through ``c exp(m)`` and ``n exp(m)``,
    so its gradients satisfy ``dm = c dc + n dn``. What the gradients of a last state add to ``dm - c dc - n dn`` is
    passed on unchanged from frame to frame, up to the one whose input gate i determined m.

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
    # What is passed on unchanged, see `slstm_loop`: from the state after a frame to that before, where kept
    # determined m.
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


def _case(size: Size) -> Case:
    n, state = size.width, (size.batch, size.width)
    inputs = draw((0.5, (size.frames, size.batch, 4 * n)), (0.5 * n**-0.5, (n, 4 * n)), *((0.5, state),) * 4)
    lengths = ragged(size)

    def smooth(h: tf.Tensor, c: tf.Tensor, n: tf.Tensor, m: tf.Tensor, last: tf.Tensor) -> list[tf.Tensor]:
        """Return what has no kinks, on which rounding would decide: c and n without the stabiliser."""
        return [h, c * tf.exp(m), n * tf.exp(m), last]

    def native(ops: Any, z: tf.Tensor, w_re: tf.Tensor, c: tf.Tensor, n: tf.Tensor, *rest: tf.Tensor) -> Any:
        parts = (x[None] for x in (z, w_re, c, tf.exp(n), *rest))
        return smooth(*(x[0] for x in native_slstm(ops, *parts, lengths=tf.constant(lengths))))

    def plain(z: tf.Tensor, w_re: tf.Tensor, c: tf.Tensor, n: tf.Tensor, *rest: tf.Tensor) -> Any:
        states = slstm_loop(z, w_re[None], (c, tf.exp(n), *rest), exp_forget=False)
        return smooth(zero_padding(states[3][1:], lengths), *(state_at(part, lengths) for part in states))

    return Case(inputs, native, plain)


SLSTM_TRIAL = Trial("slstm", "slstm", __name__, "SLSTM_TRIAL", _case, "units of a head", (64, 256))
