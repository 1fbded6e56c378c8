"""Mamba-2: state spaces as attention with a scalar decay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import at_least, option
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.matrix.chunkwise import chunk_option, chunkwise
from returnn_tf.ops.cells.matrix.head_ops import join_heads, normed, one_frame, split_heads
from returnn_tf.ops.cells.matrix.heads_cell import HeadsCell
from returnn_tf.ops.cells.matrix.recent_frames import shift_in, with_recent_frames
from returnn_tf.ops.cells.params import CellParam, by_head, input_part, taps, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.step_sizes import step_biases
from returnn_tf.ops.cells.time_axis import running_order
from returnn_tf.tensor.parts import Part
from returnn_tf.util.lazy_tf import tf


@register_cell("mamba2")
class Mamba2(HeadsCell):
    """Mamba-2 (Dao & Gu 2024, arXiv 2405.21060), with a matrix S [d_state, headdim] per head as state.

    ``gate, u, dt = split(x in_proj);  x, B, C = split(silu(conv(u)))``, a convolution of each column with the last
    d_conv frames; ``dt' = softplus(dt + dt_bias);  S' = exp(-exp(A_log) dt') S + B (dt' x)^T;  y = S'^T C + D x`` in
    each head, where heads of a group share B and C; ``out = (norm(y silu(gate)) norm/scale) out_proj``, where the norm
    divides by the root mean square of each group. Over all frames it is computed in chunks.

    Weights, with ``E = expand n``, ``H = E / headdim`` heads and ``V = E + 2 ngroups d_state``: ``in_proj``
    [in, E + V + H], ``out_proj`` [E, n] (glorot_uniform); ``conv/W`` [d_conv, V], ``conv/b`` [V] (uniform up to
    1 / sqrt(d_conv)); ``dt_bias`` [H] (so that dt' is log-uniform from 0.001 to 0.1); ``A_log`` [H] (log of uniform
    from 1 to 16); ``D`` [H] (1); ``norm/scale`` [E] (1).
    States: conv, the last d_conv - 1 frames of u, the oldest first; S [H * d_state * headdim], row by row.
    """

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        expand: int = option(2, check=at_least(1), help="dim of all heads, as a multiple of n_out")
        headdim: int = option(64, check=at_least(1), help="dim of a head; expand * n_out is a multiple of it")
        d_state: int = option(128, check=at_least(1), help="rows of the state of a head")
        ngroups: int = option(1, check=at_least(1), help="groups of heads that share B and C")
        d_conv: int = option(4, check=at_least(2), help="frames that the convolution sees, with the current one")
        chunk: int = chunk_option()

    state_keys = ("conv", "S")

    def head_shape(self) -> tuple[int, int, int]:
        """Return the heads of size headdim, and the dim of their states as that of the keys."""
        width, head, groups = self._width, self.opts.headdim, self.opts.ngroups
        if width % head:
            raise OptionError(
                "%s: unit 'mamba2': expand * n_out = %d is not divisible by headdim %d. Change one of them, e.g. to "
                "headdim %d." % (self.where, width, head, max(d for d in range(1, head) if width % d == 0))
            )
        if (width // head) % groups:
            raise OptionError(
                "%s: unit 'mamba2': the %d heads (expand * n_out / headdim) cannot be divided into ngroups %d. Change "
                "one of them." % (self.where, width // head, groups)
            )
        return width // head, self.opts.d_state, head

    @property
    def _width(self) -> int:
        """Return the dim of all heads."""
        expand: int = self.opts.expand
        return expand * self.n_out

    @property
    def _conv_dim(self) -> int:
        shared: int = self.opts.ngroups * self.opts.d_state
        return self._width + 2 * shared

    @property
    def projected_dim(self) -> int:
        """Return the dim of the gate, the input of the convolution, and dt."""
        return self._width + self._conv_dim + self.heads

    def state_sizes(self) -> tuple[int, ...]:
        """Return the sizes of conv and S."""
        return (self.opts.d_conv - 1) * self._conv_dim, *super().state_sizes()

    def param_specs(self) -> list[CellParam]:
        """Declare the projections, the convolution, and decay, step size and skip of each head."""
        d_conv: int = self.opts.d_conv
        limit = d_conv**-0.5
        uniform = "random_uniform(%r, %r)" % (-limit, limit)
        scalars, vectors = by_head(self.heads, 1), by_head(self.heads, self.values)
        shared = [Part("%s of group %d" % (x, i), self.keys) for x in "BC" for i in range(self.opts.ngroups)]
        convolved = [*by_head(self.heads, self.values, "x"), *shared]
        columns = [*by_head(self.heads, self.values, "gate"), *convolved, *by_head(self.heads, 1, "step size")]
        return [
            CellParam("in_proj", (self.in_dim, self.projected_dim), "forward", axes=(input_part(self.in_dim), columns)),
            CellParam("conv/W", (d_conv, self._conv_dim), "fixed", uniform, (taps(d_conv), convolved)),
            CellParam("conv/b", (self._conv_dim,), "fixed", uniform, (convolved,)),
            CellParam("dt_bias", (self.heads,), "fixed", step_biases(0.001, 0.1), (scalars,)),
            CellParam("A_log", (self.heads,), "fixed", _log_rates, (scalars,)),
            CellParam("D", (self.heads,), "fixed", 1.0, (scalars,)),
            CellParam("norm/scale", (self._width,), "fixed", 1.0, (vectors,)),
            CellParam("out_proj", (self._width, self.n_out), "forward", axes=(vectors, whole(self.n_out))),
        ]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``in_proj``; there is no bias."""
        return params["in_proj"], None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return all but the input weights."""
        return [params[spec.name] for spec in self.param_specs()[1:]]

    def _heads(self, weights: Sequence[tf.Tensor], frames: Sequence[tf.Tensor], dt: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return C, B, x, dt' x and the log decay [..., heads, d].

        :param frames: inputs of the convolution [..., V], of which the last one is the current one
        """
        w, b, dt_bias, a_log = weights[:4]
        parts = tf.nn.silu(tf.add_n([frame * w[i] for i, frame in enumerate(frames)]) + b)
        groups, shared = self.opts.ngroups, self.opts.ngroups * self.keys
        x, keys, queries = tf.split(parts, [self._width, shared, shared], axis=-1)
        keys, queries = (
            tf.repeat(split_heads(part, groups), self.heads // groups, axis=-2) for part in (keys, queries)
        )
        x, dt = split_heads(x, self.heads), tf.nn.softplus(dt + dt_bias)[..., None]
        return queries, keys, x, dt * x, -tf.exp(a_log)[:, None] * dt

    def _output(self, weights: Sequence[tf.Tensor], o: tf.Tensor, x: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        """Compute the output [..., n] from what the heads read, o [..., heads, headdim]."""
        skip, scale, out_proj = weights[4:]
        y = join_heads(o + skip[:, None] * x) * tf.nn.silu(gate)
        groups = self.opts.ngroups
        return self.project(join_heads(normed(split_heads(y, groups), split_heads(scale, groups))), out_proj)

    def _split(self, z: tf.Tensor) -> list[tf.Tensor]:
        parts: list[tf.Tensor] = tf.split(z, [self._width, self._conv_dim, self.heads], axis=-1)
        return parts

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Convolve the recent frames, and update and read the matrices of the heads."""
        gate, u, dt = self._split(z)
        frames, conv = shift_in(u, state[0], self.opts.d_conv - 1)
        q, k, x, v, log_decay = self._heads(weights, frames, dt)
        o, last = one_frame(q, k, v, log_decay, self.matrices(state[1]))
        return self._output(weights, o, x, gate), (conv, join_heads(last, 3))

    def over_time(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Convolve all frames, and run linear attention in chunks."""
        gate, u, dt = self._split(running_order(z, lengths, reverse))
        frames, conv = with_recent_frames(u, state[0], self.opts.d_conv - 1, lengths)
        q, k, x, v, log_decay = self._heads(weights, frames, dt)
        before = self.matrices(state[1])
        o, last = chunkwise(q, k, v, log_decay, before, lengths=lengths, chunk=self.opts.chunk)
        outputs = self._output(weights, o, x, gate)
        return running_order(outputs, lengths, reverse), (conv, join_heads(last, 3))


def _log_rates(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Return logarithms of numbers that are uniform from 1 to 16."""
    rates: NDArray[Any] = np.log(rng.uniform(1, 16, shape))
    return rates
