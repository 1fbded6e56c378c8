"""Mamba: a selective state space, whose step sizes, inputs and outputs depend on the frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import above, at_least, option
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.matrix.causal_convolution import causal_convolution
from returnn_tf.ops.cells.matrix.recent_frames import shift_in
from returnn_tf.ops.cells.params import CellParam, input_part, taps, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.step_sizes import step_biases
from returnn_tf.ops.cells.time_axis import running_order, zero_padding
from returnn_tf.ops.sequence.selective_scan import selective_scan
from returnn_tf.tensor.parts import Part, total_size
from returnn_tf.util.lazy_tf import tf


def _rank(value: Union[int, str]) -> Optional[str]:
    return None if value == "auto" or (isinstance(value, int) and value >= 1) else "must be 'auto' or 1 or more"


@register_cell("mamba")
class Mamba(Cell):
    """Mamba (Gu & Dao 2023, arXiv 2312.00752), with E = expand n channels, N states of each, and rank R.

    ``x, g = split(input in_proj);  x = silu(conv(x));  r, B, C = split(x x_proj)``, conv sees the last d_conv frames
    ``delta = softplus(r dt_proj + dt_bias);  h' = exp(-delta exp(A_log)) h + delta x B``
    ``y = ((sum over the N states of C h') + D x) silu(g) out_proj``

    The states are "h" [N, E], flattened, and "conv": the last d_conv - 1 frames of x, [d_conv - 1, E], flattened, the
    oldest one first. All frames are computed in parallel.

    Weights: ``in_proj`` [in, 2 E], ``x_proj`` [E, R + 2 N], ``out_proj`` [E, n]; ``conv/W`` [d_conv, E] and ``conv/b``
    [E] (uniform up to 1 / sqrt(d_conv)); ``dt_proj`` [R, E] (uniform up to 1 / sqrt(R)); ``dt_bias`` [E] (such that
    delta is log-uniform from dt_min to dt_max); ``A_log`` [N, E] (log 1 ... log N); ``D`` [E] (1).
    """

    state_keys = ("h", "conv")

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        expand: int = option(2, help="channels, in units of n_out", check=at_least(1))
        d_state: int = option(16, help="states of each channel", check=at_least(1))
        d_conv: int = option(4, help="frames that the filter in front of the recurrence sees", check=at_least(2))
        dt_rank: Union[int, str] = option(
            "auto", help="rank of the projection to the step sizes; 'auto': n_out / 16, rounded up", check=_rank
        )
        dt_min: float = option(0.001, help="smallest initial step size", check=above(0))
        dt_max: float = option(0.1, help="largest initial step size", check=above(0))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.opts.dt_min > self.opts.dt_max:
            raise OptionError("%s: dt_min %g is above dt_max %g." % (self.where, self.opts.dt_min, self.opts.dt_max))

    @property
    def channels(self) -> int:
        """Return the number of channels, E."""
        return int(self.opts.expand * self.n_out)

    @property
    def rank(self) -> int:
        """Return the rank of the projection to the step sizes, R."""
        return -(-self.n_out // 16) if self.opts.dt_rank == "auto" else int(self.opts.dt_rank)

    @property
    def projected_dim(self) -> int:
        """Return the width of x and g."""
        return 2 * self.channels

    @property
    def output_state(self) -> None:
        """Return None: no state is the output."""
        return None

    def state_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the state of the scan and of the recent frames of the convolution."""
        return self.opts.d_state * self.channels, (self.opts.d_conv - 1) * self.channels

    def param_specs(self) -> list[CellParam]:
        """Declare the projections, the convolution, and the parameters of the selective scan."""
        width, opts = self.channels, self.opts
        a_log = np.repeat(np.log(np.arange(1, opts.d_state + 1))[:, None], width, axis=1)
        channels = whole(width)
        selection = [Part("step size", self.rank), Part("B", opts.d_state), Part("C", opts.d_state)]
        columns, filter_axes = [Part("x", width), Part("gate", width)], (taps(opts.d_conv), channels)
        in_proj = CellParam("in_proj", (self.in_dim, 2 * width), "forward", axes=(input_part(self.in_dim), columns))
        return [
            *([in_proj] if self.input_projection else []),
            CellParam("conv/W", (opts.d_conv, width), "fixed", _uniform(opts.d_conv**-0.5), filter_axes),
            CellParam("conv/b", (width,), "bias", _uniform(opts.d_conv**-0.5), (channels,)),
            CellParam("x_proj", (width, total_size(selection)), "forward", axes=(channels, selection)),
            CellParam("dt_proj", (self.rank, width), "fixed", _uniform(self.rank**-0.5), (whole(self.rank), channels)),
            CellParam("dt_bias", (width,), "fixed", step_biases(opts.dt_min, opts.dt_max), (channels,)),
            CellParam("A_log", (opts.d_state, width), "fixed", a_log, (whole(opts.d_state), channels)),
            CellParam("D", (width,), "fixed", 1.0, (channels,)),
            CellParam("out_proj", (width, self.n_out), "forward", axes=(channels, whole(self.n_out))),
        ]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``in_proj``, without a bias; None if the input is already projected."""
        return (params["in_proj"], None) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the other weights in the order of `param_specs`, with A in place of A_log."""
        weights = {name: params[name] for name in _NAMES}
        weights["A_log"] = -tf.exp(weights["A_log"])
        return list(weights.values())

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Convolve the recent frames, and update the state by the selected step size, B and C."""
        conv, conv_bias, w_x, w_dt, dt_bias, a, d, w_out = weights
        x, gate = tf.split(z, 2, axis=-1)
        frames, last_frames = shift_in(x, state[1], self.opts.d_conv - 1)
        x = tf.nn.silu(tf.add_n([frame * conv[k] for k, frame in enumerate(frames)]) + conv_bias)
        delta, b, c = self._selection(x, w_x, w_dt, dt_bias)
        h = tf.reshape(state[0], [-1, self.opts.d_state, self.channels])
        h = tf.exp(delta[:, None, :] * a) * h + (delta * x)[:, None, :] * b[:, :, None]
        y = tf.reduce_sum(h * c[:, :, None], axis=1) + d * x
        flat = tf.reshape(h, [-1, self.opts.d_state * self.channels])
        return tf.matmul(y * tf.nn.silu(gate), w_out), (flat, last_frames)

    def _selection(
        self, x: tf.Tensor, w_x: tf.Tensor, w_dt: tf.Tensor, dt_bias: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return delta [..., E], B and C [..., N] from x [..., E]."""
        low, b, c = tf.split(self.project(x, w_x), [self.rank, self.opts.d_state, self.opts.d_state], axis=-1)
        return tf.nn.softplus(self.project(low, w_dt, dt_bias)), b, c

    @property
    def is_parallel(self) -> bool:
        """Return True: the scan is linear in the state."""
        return True

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute the convolution over all frames, and then the selective scan."""
        conv, conv_bias, w_x, w_dt, dt_bias, a, d, w_out = weights
        z = running_order(z if lengths is None else zero_padding(z, lengths), lengths, reverse)
        x, gate = tf.split(z, 2, axis=-1)
        filtered, last_frames = causal_convolution(x, conv, state[1], lengths)
        x = tf.nn.silu(filtered + conv_bias)
        delta, b, c = self._selection(x, w_x, w_dt, dt_bias)
        h0 = tf.reshape(state[0], [-1, self.opts.d_state, self.channels])
        y, h_last = selective_scan(x, delta, a, b, c, d, h0, lengths)
        out = running_order(self.project(y * tf.nn.silu(gate), w_out), lengths, reverse)
        return out, (tf.reshape(h_last, [-1, self.state_sizes()[0]]), last_frames)


#: The parameters behind the input projection, in the order in which `Mamba.prepare` returns them.
_NAMES = ("conv/W", "conv/b", "x_proj", "dt_proj", "dt_bias", "A_log", "D", "out_proj")


def _uniform(limit: float) -> str:
    return "random_uniform(%r, %r)" % (-limit, limit)
