"""mLSTM: the LSTM with a matrix as memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.options import at_least, option
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.matrix.chunkwise import chunk_option, chunkwise
from returnn_tf.ops.cells.matrix.head_ops import join_heads, one_frame, split_heads
from returnn_tf.ops.cells.matrix.heads_cell import HeadsCell
from returnn_tf.ops.cells.params import CellParam, by_head, input_part
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.time_axis import frame_mask, running_order
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.tensor.parts import Parts
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

#: Limits the exponent in the denominator to +-60, where float32 has neither overflow nor 0: what is divided by more is
#: 0 anyway, and ``n q`` is below the least only where it is 0.
_MAX_EXPONENT = 60.0


@register_cell("mlstm")
class MLstm(HeadsCell):
    """mLSTM (Beck et al. 2024, xLSTM, arXiv 2405.04517), with a matrix C, a vector n and a number m per head as state.

    ``q, k, v, o = split(x W + b);  i, f = split(x W_gates + b_gates)``, where q, k, v and o are split into heads and
    each head has one i and one f. With a forget gate ``exp`` log f stands for f, with ``sigmoid`` for log sigmoid(f):

    ``m' = max(log f + m, i);  C' = exp(log f + m - m') C + exp(i - m') k v^T / sqrt(d);``
    ``n' = exp(log f + m - m') n + exp(i - m') k / sqrt(d);  h = sigmoid(o) C'^T q / max(|n' q|, exp(-m'))``

    C and n are small by the factor exp(-m), so that the exponential gates cannot overflow; h does not depend on it.
    Over all frames C is computed in chunks.

    Weights, with H heads: ``W`` [in, 4 n], ``b`` [4 n] (0), ``W_gates`` [in, 2 H] (0), ``b_gates`` [2 H] (normal with
    deviation 0.1 for i, from 3 to 6 over the heads for f).
    States: C [H * n / H * n / H], its rows for k, its columns for v; n [n]; m [H]. All are 0 by default.
    """

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        num_heads: int = option(4, check=at_least(1), help="number of heads; n_out is a multiple of it")
        forget_gate: str = option("sigmoid", choices=("sigmoid", "exp"), help="activation of the forget gate")
        chunk: int = chunk_option()

    state_keys = ("C", "n", "m")

    def head_shape(self) -> tuple[int, int, int]:
        """Return the heads, which share n_out as keys and as values."""
        self.check_divisible(self.n_out, "n_out", self.opts.num_heads)
        return self.opts.num_heads, self.n_out // self.opts.num_heads, self.n_out // self.opts.num_heads

    def state_sizes(self) -> tuple[int, ...]:
        """Return the sizes of C, n and m."""
        return *super().state_sizes(), self.n_out, self.heads

    @property
    def projected_dim(self) -> int:
        """Return the dim of q, k, v, o and the gates i and f."""
        return 4 * self.n_out + 2 * self.heads

    def param_specs(self) -> list[CellParam]:
        """Declare the weights of queries, keys, values and output gates, and those of the scalar gates."""
        n, heads, inputs = self.n_out, self.heads, input_part(self.in_dim)
        vectors, gates = by_head(heads, self.values, *"qkvo"), by_head(heads, 1, *"if")
        return [
            CellParam("W", (self.in_dim, 4 * n), "forward", axes=(inputs, vectors)),
            CellParam("b", (4 * n,), "bias", 0.0, (vectors,)),
            CellParam("W_gates", (self.in_dim, 2 * heads), "fixed", 0.0, (inputs, gates)),
            CellParam("b_gates", (2 * heads,), "fixed", _gate_biases, (gates,)),
        ]

    def output_parts(self) -> Parts:
        """Return the heads."""
        return by_head(self.heads, self.values)

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return both matrices side by side, and both biases."""
        weights = tf.concat([params["W"], params["W_gates"]], axis=1)
        return weights, tf.concat([params["b"], params["b_gates"]], axis=0)

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return nothing: there are no recurrent weights."""
        return []

    def _split(self, z: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return q, k, v [..., heads, d], sigmoid(o) [..., n], and i and log f [..., heads]."""
        q, k, v, o, i, f = tf.split(z, [self.n_out] * 4 + [self.heads] * 2, axis=-1)
        q, k, v = (split_heads(x, self.heads) for x in (q, k * self.keys**-0.5, v))
        return q, k, v, tf.sigmoid(o), i, f if self.opts.forget_gate == "exp" else tf.math.log_sigmoid(f)

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Update the memory, stabilised by the maximum of the gates so far, and read it."""
        q, k, v, gate, i, log_f = self._split(z)
        c, n, before = state
        m = tf.maximum(log_f + before, i)
        k *= tf.exp(i - m)[..., None]
        read, last = one_frame(q, k, _with_one(v), (log_f + before - m)[..., None], self._memory(c, n))
        return gate * join_heads(_divided(read, m)), self._state(last, m)

    def over_time(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Stabilise the gates of all frames, and run linear attention in chunks."""
        q, k, v, gate, i, log_f = self._split(z)
        c, n, m_first = state
        m, before, m_last = stabiliser(log_f, i, m_first, lengths=lengths, reverse=reverse)
        k *= tf.exp(tf.minimum(i - m, tf.zeros([], m.dtype)))[..., None]  # above 0 only in the padding
        decay = (log_f + before - m)[..., None]
        read, last = chunkwise(
            q,
            k,
            _with_one(v),
            decay,
            self._memory(c, n),
            lengths=lengths,
            reverse=reverse,
            chunk=self.opts.chunk,
        )
        return gate * join_heads(_divided(read, m)), self._state(last, m_last)

    def _memory(self, c: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        """Return C with n as one more column: it is the sum for a value of 1."""
        return tf.concat([self.matrices(c), split_heads(n, self.heads)[..., None]], axis=-1)

    def _state(self, memory: tf.Tensor, m: tf.Tensor) -> State:
        return join_heads(memory[..., :-1], 3), join_heads(memory[..., -1]), m


def _with_one(v: tf.Tensor) -> tf.Tensor:
    return tf.pad(v, [[0, 0]] * (v.shape.rank - 1) + [[0, 1]], constant_values=1)


def _divided(read: tf.Tensor, m: tf.Tensor) -> tf.Tensor:
    """Divide C q [..., d] by n q, which is its last column."""
    least = tf.exp(tf.clip_by_value(-m, -_MAX_EXPONENT, _MAX_EXPONENT))[..., None]
    return read[..., :-1] / tf.maximum(tf.abs(read[..., -1:]), least)


def _gate_biases(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Return the initial biases of the gates i and f."""
    heads = shape[0] // 2
    return np.concatenate([rng.normal(0, 0.1, heads), np.linspace(3, 6, heads)])


#: In place of -inf, of which differences would be NaN.
_LOWEST = -1e30


def stabiliser(
    log_f: tf.Tensor, i: tf.Tensor, first: tf.Tensor, *, lengths: Optional[tf.Tensor], reverse: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute ``m_t = max(log_f_t + m_{t-1}, i_t)`` over all frames in parallel.

    This running maximum keeps exponential gates in range.

    :param log_f: [time, batch, heads]
    :param i: [time, batch, heads]
    :param first: m before the first frame [batch, heads]
    :param lengths: int [batch]; None: all sequences have all frames
    :param reverse: each sequence runs from its last to its first frame; arrays keep the order of time
    :return: m [time, batch, heads], m of the frame before each one, and m after the frame that ran last
    """
    if lengths is not None:
        mask = frame_mask(lengths, tf.shape(i)[0])[:, :, None]
        log_f = tf.where(mask, log_f, tf.zeros([], i.dtype))
        i = tf.where(mask, i, tf.constant(_LOWEST, i.dtype))
    log_f, i = (running_order(x, lengths, reverse) for x in (log_f, i))
    i = tf.concat([tf.maximum(log_f[:1] + first, i[:1]), i[1:]], axis=0)
    states = tf.concat([first[None], _running_maximum(log_f, i)], axis=0)
    m, before = (running_order(x, lengths, reverse) for x in (states[1:], states[:-1]))
    return m, before, states[-1]


def _running_maximum(added: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """Compute ``m[t] = max(added[t] + m[t-1], least[t])`` from a state of -inf; all [time, batch, heads]."""

    @custom_gradient
    def run(added: tf.Tensor, least: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        m = _doubling(added, least)

        def gradient(dm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # 1 where the maximum comes from the frame before.
            carried = tf.cast(added[1:] + m[:-1] >= least[1:], m.dtype)
            to_next = tf.concat([carried, tf.zeros_like(m[:1])], axis=0)[: tf.shape(m)[0]]
            total, _ = linear_recurrence(to_next, dm, tf.zeros_like(first), reverse=True)
            from_before = tf.concat([tf.zeros_like(m[:1]), carried], axis=0)[: tf.shape(m)[0]]
            return total * from_before, total * (1 - from_before)

        return m, gradient

    first = tf.zeros(tf.shape(least)[1:], least.dtype)
    m: tf.Tensor = run(added, least)
    m.set_shape(least.shape)
    return m


def _doubling(added: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """Compute `_running_maximum` over 1, 2, 4, ... frames up to each one."""
    n_frames = tf.shape(least)[0]

    def shifted(x: tf.Tensor, shift: tf.Tensor, fill: float) -> tf.Tensor:
        return tf.pad(x[: n_frames - shift], [[shift, 0], [0, 0], [0, 0]], constant_values=fill)

    def body(shift: tf.Tensor, total: tf.Tensor, m: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        new = tf.maximum(total + shifted(m, shift, _LOWEST), m)
        total = total + shifted(total, shift, 0.0)
        return 2 * shift, tf.ensure_shape(total, added.shape), tf.ensure_shape(new, least.shape)

    return tf.while_loop(lambda shift, *_: shift < n_frames, body, (1, added, least))[2]
