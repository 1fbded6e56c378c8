"""S4D: a diagonal state space for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import above, option
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.params import CellParam, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.step_sizes import log_steps
from returnn_tf.ops.cells.time_axis import running_order, zero_padding
from returnn_tf.ops.sequence.linear_recurrence import Parts, product_of_parts, recurrence_of_parts
from returnn_tf.util.lazy_tf import tf


def _even(value: int) -> Optional[str]:
    return None if value >= 2 and value % 2 == 0 else "must be even and at least 2: states come in conjugate pairs"


@register_cell("s4d")
class S4d(Cell):
    """S4D (Gu et al. 2022, arXiv 2206.11893): N states in N / 2 conjugate pairs for each of the n channels.

    ``u = x W + b;  h' = A' h + u;  y = 2 Re(sum over the pairs of B' C h') + D u``

    With ``A = -exp(A_log_re) + i A_im`` and the step size ``s = exp(log_step)``, the discretization

    - "zoh" is ``A' = exp(s A);  B' = (A' - 1) / A``,
    - "bilinear" is ``A' = (1 + s A / 2) / (1 - s A / 2);  B' = s / (1 - s A / 2)``.

    The states "re" and "im" [N / 2, n], flattened, are the parts of h, before its input weight B'. There is no product
    of channels behind the recurrence and no activation: a linear layer has them. All frames are computed in parallel.

    Weights: ``W`` [in, n], ``b`` [n] (0), ``log_step`` [n] (log-uniform from dt_min to dt_max), ``A_log_re``
    [N / 2, n] (log 0.5), ``A_im`` [N / 2, n] (init "lin": pi k; "inv": N / pi (N / (2 k + 1) - 1), for k = 0, 1, ...),
    ``C_re`` and ``C_im`` [N / 2, n] (normal, variance 0.5), ``D`` [n] (normal, variance 1).
    """

    state_keys = ("re", "im")

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        d_state: int = option(64, help="states of each channel, in conjugate pairs", check=_even)
        init: str = option("lin", help="initial frequencies", choices=("lin", "inv"))
        discretization: str = option("zoh", help="of the time axis", choices=("zoh", "bilinear"))
        dt_min: float = option(0.001, help="smallest initial step size", check=above(0))
        dt_max: float = option(0.1, help="largest initial step size", check=above(0))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.opts.dt_min > self.opts.dt_max:
            raise OptionError("%s: dt_min %g is above dt_max %g." % (self.where, self.opts.dt_min, self.opts.dt_max))

    @property
    def pairs(self) -> int:
        """Return the number of conjugate pairs of states, N / 2."""
        return int(self.opts.d_state) // 2

    @property
    def output_state(self) -> None:
        """Return None: no state is the output."""
        return None

    def state_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the real and of the imaginary parts."""
        return self.pairs * self.n_out, self.pairs * self.n_out

    def param_specs(self) -> list[CellParam]:
        """Declare the input weights, the step sizes, A, C and D."""
        n, shape, opts = self.n_out, (self.pairs, self.n_out), self.opts
        axes = (whole(self.pairs), whole(n))
        normal = "random_normal(0.0, %r)" % 0.5**0.5
        inputs = [CellParam("W", (self.in_dim, n), "forward"), CellParam("b", (n,), "bias", 0.0)]
        return [
            *(inputs if self.input_projection else []),
            CellParam("log_step", (n,), "fixed", log_steps(opts.dt_min, opts.dt_max)),
            CellParam("A_log_re", shape, "fixed", float(np.log(0.5)), axes),
            CellParam("A_im", shape, "fixed", self._initial_frequencies(), axes),
            CellParam("C_re", shape, "fixed", normal, axes),
            CellParam("C_im", shape, "fixed", normal, axes),
            CellParam("D", (n,), "fixed", "random_normal(0.0, 1.0)"),
        ]

    def _initial_frequencies(self) -> NDArray[Any]:
        k, size = np.arange(self.pairs), self.opts.d_state
        values = np.pi * k if self.opts.init == "lin" else size / np.pi * (size / (2 * k + 1) - 1)
        return np.repeat(values[:, None], self.n_out, axis=1)

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``W`` and ``b``; None if the input is already projected."""
        return (params["W"], params["b"]) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the parts of A' and of 2 B' C [N / 2, n], and D."""
        step = tf.exp(params["log_step"])
        a = (-tf.exp(params["A_log_re"]), params["A_im"])
        scaled = (step * a[0], step * a[1])
        if self.opts.discretization == "zoh":
            size = tf.exp(scaled[0])
            factor = (size * tf.cos(scaled[1]), size * tf.sin(scaled[1]))
            weight = _quotient((factor[0] - 1, factor[1]), a)
        else:
            below = (1 - scaled[0] / 2, -scaled[1] / 2)
            factor = _quotient((1 + scaled[0] / 2, scaled[1] / 2), below)
            weight = _quotient((step + tf.zeros_like(a[0]), tf.zeros_like(a[0])), below)
        c_re, c_im = params["C_re"], params["C_im"]
        out = (2 * (weight[0] * c_re - weight[1] * c_im), 2 * (weight[0] * c_im + weight[1] * c_re))
        return [*factor, *out, params["D"]]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Update the states of all pairs, and sum their outputs."""
        a_re, a_im, c_re, c_im, d = weights
        re, im = (tf.reshape(part, [-1, self.pairs, self.n_out]) for part in state)
        re, im = a_re * re - a_im * im + z[:, None, :], a_re * im + a_im * re
        y = tf.reduce_sum(c_re * re - c_im * im, axis=1) + d * z
        return y, tuple(tf.reshape(part, [-1, self.pairs * self.n_out]) for part in (re, im))

    @property
    def is_parallel(self) -> bool:
        """Return True: the recurrence is linear with constant factors."""
        return True

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all frames in chunks by `time_invariant`."""
        a_re, a_im, c_re, c_im, d = weights
        z = running_order(z if lengths is None else zero_padding(z, lengths), lengths, reverse)
        y, last = time_invariant((a_re, a_im), (c_re, c_im), z, state, lengths)
        y = y + d * z
        y = y if lengths is None else zero_padding(y, lengths)
        return running_order(y, lengths, reverse), last


def _quotient(x: tuple[tf.Tensor, tf.Tensor], y: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Divide complex numbers, given as pairs of parts."""
    square = y[0] * y[0] + y[1] * y[1]
    return (x[0] * y[0] + x[1] * y[1]) / square, (x[1] * y[0] - x[0] * y[1]) / square


#: Frames of a chunk, a power of 2: states are in memory only between chunks.
CHUNK = 32


def time_invariant(
    a: Parts, c: Parts, x: tf.Tensor, state: State, lengths: Optional[tf.Tensor]
) -> tuple[tf.Tensor, State]:
    """Compute ``h' = a h + x;  y = Re(sum over the states of c h')`` for each channel, over all frames.

    Complex numbers are pairs of a real and an imaginary part.

    Within a chunk, y is the sum of a product of a Toeplitz matrix with x, and of one with the state before the chunk.

    :param a: [m, n], m complex states for each of the n channels
    :param c: [m, n]
    :param x: [time, batch, n], 0 in padding
    :param state: parts of the initial state [batch, m * n]
    :param lengths: int [batch]; None: all sequences have all frames
    :return: y [time, batch, n]; the parts of the state of each sequence after its last frame [batch, m * n]
    """
    n_frames, batch, n = tf.shape(x)[0], tf.shape(x)[1], x.shape[2]
    m = a[0].shape[0]
    powers, over_chunk = _powers(a)
    count = (n_frames + CHUNK - 1) // CHUNK
    padded = tf.pad(x, [[0, count * CHUNK - n_frames], [0, 0], [0, 0]])
    chunks = tf.reshape(padded, [count, CHUNK, batch, n])
    # [n, CHUNK, count * batch]: one product for each channel
    inputs = tf.reshape(tf.transpose(chunks, [3, 1, 0, 2]), [n, CHUNK, count * batch])
    # What a chunk adds to the state: its last frame with power 0, its first one with CHUNK - 1.
    add = tf.concat([tf.transpose(tf.reverse(part, [0]), [2, 1, 0]) for part in powers], axis=1)  # [n, 2 m, CHUNK]

    def added(inputs: tf.Tensor, n_chunks: tf.Tensor) -> Parts:
        """Return the parts [n_chunks, batch, m * n]."""
        parts = tf.reshape(tf.matmul(add, inputs), [n, 2, m, n_chunks, batch])
        re, im = tf.unstack(tf.reshape(tf.transpose(parts, [1, 3, 4, 2, 0]), [2, n_chunks, batch, m * n]), num=2)
        return re, im

    factors = tuple(tf.reshape(part, [m * n]) for part in over_chunk)
    after, _ = recurrence_of_parts(factors, added(inputs, count), state)
    states = [tf.concat([first[None], part], axis=0) for first, part in zip(state, after)]
    before = tf.stack([tf.reshape(part[:-1], [count, batch, m, n]) for part in states])  # [2, count, batch, m, n]
    before = tf.reshape(tf.transpose(before, [4, 0, 3, 1, 2]), [n, 2 * m, count * batch])
    y = tf.matmul(
        tf.concat([_toeplitz(c, powers), _reading(c, product_of_parts(powers, a))], axis=2),
        tf.concat([inputs, before], axis=1),
    )
    y = tf.reshape(tf.transpose(tf.reshape(y, [n, CHUNK, count, batch]), [2, 1, 3, 0]), [-1, batch, n])[:n_frames]
    y.set_shape(x.shape)
    ends = tf.fill([batch], n_frames) if lengths is None else tf.cast(lengths, tf.int32)
    # The frames of the chunk in which a sequence ends, moved to the end of the chunk.
    frames = ends[None, :] - CHUNK + tf.range(CHUNK)[:, None]
    sequence = tf.broadcast_to(tf.range(batch), tf.shape(frames))
    ended = tf.gather_nd(
        tf.concat([x, tf.zeros([1, batch, n], x.dtype)], 0), tf.stack([tf.maximum(frames, 0), sequence], -1)
    )
    inside = frames >= ends // CHUNK * CHUNK
    ended = tf.where(inside[:, :, None], ended, tf.zeros([], x.dtype))
    more = added(tf.transpose(ended, [2, 0, 1]), tf.constant(1))
    started = [tf.gather_nd(part, tf.stack([ends // CHUNK, tf.range(batch)], -1)) for part in states]
    re, im = (tf.reshape(tf.gather(part, ends % CHUNK), [batch, m * n]) for part in powers)
    last = (re * started[0] - im * started[1] + more[0][0], re * started[1] + im * started[0] + more[1][0])
    return y, last


def _powers(a: Parts) -> tuple[Parts, Parts]:
    """Return a^0 ... a^(CHUNK - 1) [CHUNK, m, n], and a^CHUNK [m, n]; CHUNK is a power of 2."""
    powers, factor = (tf.ones_like(a[0])[None], tf.zeros_like(a[1])[None]), a
    while powers[0].shape[0] < CHUNK:
        more = product_of_parts(powers, factor)
        powers = tf.concat([powers[0], more[0]], axis=0), tf.concat([powers[1], more[1]], axis=0)
        factor = product_of_parts(factor, factor)
    return powers, factor


def _toeplitz(c: Parts, powers: Parts) -> tf.Tensor:
    """Return the weight of frame j of a chunk in y of frame i [n, i, j]: Re(sum over the states of c a^(i - j))."""
    kernel = tf.reduce_sum(c[0] * powers[0] - c[1] * powers[1], axis=1)  # [CHUNK, n]
    # A product with zeros and ones: the gradient of a gather would be a slow scatter.
    distance = np.arange(CHUNK)[:, None] - np.arange(CHUNK)[None, :]
    places = tf.constant(np.arange(CHUNK)[:, None] == distance.ravel(), kernel.dtype)
    return tf.reshape(tf.matmul(kernel, places, transpose_a=True), [-1, CHUNK, CHUNK])


def _reading(c: Parts, powers: Parts) -> tf.Tensor:
    """Return the weights of the state before a chunk in y of frame i [n, i, 2 m]: Re(c a^(i + 1) h).

    :param powers: a^1 ... a^CHUNK
    """
    re, im = product_of_parts(c, powers)
    return tf.concat([tf.transpose(part, [2, 0, 1]) for part in (re, -im)], axis=2)
