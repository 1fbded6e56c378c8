"""Mamba: a selective state space, whose step sizes, inputs and outputs depend on the frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy
from numpy.typing import NDArray

from returnn_tf.config import ConfigError
from returnn_tf.config.options import option
from returnn_tf.ops.cells.base import Cell, CellParam, NativeKernel, Params, State, all_lengths, project
from returnn_tf.ops.cells.diagonal.causal_convolution import causal_convolution
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.time_axis import reverse_sequences, zero_padding
from returnn_tf.ops.initializers import Initializer
from returnn_tf.ops.sequence.selective_scan import selective_scan
from returnn_tf.util.lazy_tf import tf

#: Step sizes begin at this or above.
_DT_FLOOR = 1e-4


def _positive(number: float) -> Optional[str]:
    return None if number > 0 else "must be above 0"


def _rank(value: Union[int, str]) -> Optional[str]:
    return None if value == "auto" or (isinstance(value, int) and value >= 1) else "must be 'auto' or 1 or more"


def _width(number: int) -> Optional[str]:
    return None if number >= 2 else "must be 2 or more: the filter sees the frame and the frames before it"


@register_cell("mamba")
class Mamba(Cell):
    """Mamba (Gu & Dao 2023, arXiv 2312.00752), with E = expand n channels, N states of each, and rank R.

    ``x, g = split(input W);  x = silu(conv over the last d_conv frames of x + conv_bias);  r, B, C = split(x W_x)``
    ``delta = softplus(r W_dt + dt_bias);  h' = exp(-delta exp(A_log)) h + delta x B``
    ``y = ((sum over the N states of C h') + D x) silu(g) W_out``

    The states are "h" [N, E], flattened, and "conv": the last d_conv - 1 frames of x, [d_conv - 1, E], flattened, the
    oldest one first. All frames are computed in parallel.

    Weights: ``W`` [in, 2 E], ``conv`` [d_conv, E] and ``conv_bias`` [E] (uniform, +-1 / sqrt(d_conv)), ``W_x``
    [E, R + 2 N], ``W_dt`` [R, E] (uniform, +-1 / sqrt(R)), ``dt_bias`` [E] (such that delta is log-uniform between
    dt_min and dt_max), ``A_log`` [N, E] (log 1 ... log N), ``D`` [E] (1), ``W_out`` [E, n].
    """

    state_keys = ("h", "conv")

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        expand: int = option(2, help="channels, in units of n_out", check=_positive)
        d_state: int = option(16, help="states of each channel", check=_positive)
        d_conv: int = option(4, help="frames that the filter in front of the recurrence sees", check=_width)
        dt_rank: Union[int, str] = option(
            "auto", help="rank of the projection to the step sizes; 'auto': n_out / 16, rounded up", check=_rank
        )
        dt_min: float = option(0.001, help="smallest initial step size", check=_positive)
        dt_max: float = option(0.1, help="largest initial step size", check=_positive)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.opts.dt_min > self.opts.dt_max:
            raise ConfigError("%s: dt_min %g is above dt_max %g." % (self.where, self.opts.dt_min, self.opts.dt_max))

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
        """Return the lengths of the states; see `Cell.state_sizes`."""
        return self.opts.d_state * self.channels, (self.opts.d_conv - 1) * self.channels

    def param_specs(self) -> list[CellParam]:
        """Declare the parameters; see `Cell.param_specs`."""
        width, opts = self.channels, self.opts
        a_log = numpy.repeat(numpy.log(numpy.arange(1, opts.d_state + 1))[:, None], width, axis=1)
        first = [CellParam("W", (self.in_dim, 2 * width), "forward")] if self.input_projection else []
        return [
            *first,
            CellParam("conv", (opts.d_conv, width), "fixed", uniform(opts.d_conv**-0.5)),
            CellParam("conv_bias", (width,), "bias", uniform(opts.d_conv**-0.5)),
            CellParam("W_x", (width, self.rank + 2 * opts.d_state), "forward"),
            CellParam("W_dt", (self.rank, width), "fixed", uniform(self.rank**-0.5)),
            CellParam("dt_bias", (width,), "fixed", self._initial_dt_bias),
            CellParam("A_log", (opts.d_state, width), "fixed", a_log),
            CellParam("D", (width,), "fixed", 1.0),
            CellParam("W_out", (width, self.n_out), "forward"),
        ]

    def _initial_dt_bias(self, shape: tuple[int, ...], rng: numpy.random.Generator) -> NDArray[Any]:
        low, high = numpy.log(self.opts.dt_min), numpy.log(self.opts.dt_max)
        dt = numpy.maximum(numpy.exp(rng.uniform(low, high, shape)), _DT_FLOOR)
        inverse: NDArray[Any] = dt + numpy.log(-numpy.expm1(-dt))  # of softplus
        return inverse

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return the input weights; see `Cell.input_weights`."""
        return (params["W"], None) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the other weights in the order of `param_specs`, with A in place of A_log; see `Cell.prepare`."""
        weights = {name: params[name] for name in _NAMES}
        weights["A_log"] = -tf.exp(weights["A_log"])
        return list(weights.values())

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute one step; see `Cell.step`."""
        conv, conv_bias, w_x, w_dt, dt_bias, a, d, w_out = weights
        x, gate = tf.split(z, 2, axis=-1)
        seen = tf.concat([state[1], x], axis=1)  # d_conv frames, the oldest one first
        frames = tf.reshape(seen, [-1, self.opts.d_conv, self.channels])
        x = tf.nn.silu(tf.reduce_sum(frames * conv, axis=1) + conv_bias)
        delta, b, c = self._selection(x, w_x, w_dt, dt_bias)
        h = tf.reshape(state[0], [-1, self.opts.d_state, self.channels])
        h = tf.exp(delta[:, None, :] * a) * h + (delta * x)[:, None, :] * b[:, :, None]
        y = tf.reduce_sum(h * c[:, :, None], axis=1) + d * x
        flat = tf.reshape(h, [-1, self.opts.d_state * self.channels])
        return tf.matmul(y * tf.nn.silu(gate), w_out), (flat, seen[:, self.channels :])

    def _selection(
        self, x: tf.Tensor, w_x: tf.Tensor, w_dt: tf.Tensor, dt_bias: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return delta [..., E], B and C [..., N] from x [..., E]."""
        low, b, c = tf.split(project(x, w_x), [self.rank, self.opts.d_state, self.opts.d_state], axis=-1)
        return tf.nn.softplus(project(low, w_dt, dt_bias)), b, c

    def parallel_kernel(self) -> Optional[NativeKernel]:
        """Return the form over all frames in parallel; see `Cell.parallel_kernel`."""
        return self._all_frames

    def _all_frames(
        self,
        cell: Cell,
        params: Params,
        z: tf.Tensor,
        lengths: Optional[tf.Tensor],
        state: State,
        seed: Optional[tf.Tensor],
        reverse: bool,
    ) -> tuple[tf.Tensor, State]:
        batch, ends = tf.shape(z)[1], all_lengths(lengths, z)
        conv, conv_bias, w_x, w_dt, dt_bias, a, d, w_out = self.prepare(params, batch=batch, seed=seed)
        z = reverse_sequences(z, ends) if reverse else z
        z = z if lengths is None else zero_padding(z, lengths)
        x, gate = tf.split(z, 2, axis=-1)
        before = tf.reshape(state[1], [batch, self.opts.d_conv - 1, self.channels])
        filtered, last_frames = causal_convolution(x, conv, before, ends)
        x = tf.nn.silu(filtered + conv_bias)
        delta, b, c = self._selection(x, w_x, w_dt, dt_bias)
        h0 = tf.reshape(state[0], [batch, self.opts.d_state, self.channels])
        y, h_last = selective_scan(x, delta, a, b, c, d, h0, lengths)
        out = project(y * tf.nn.silu(gate), w_out)
        out = reverse_sequences(out, ends) if reverse else out
        sizes = self.state_sizes()
        return out, (tf.reshape(h_last, [batch, sizes[0]]), tf.reshape(last_frames, [batch, sizes[1]]))


#: The parameters behind the input projection, in the order in which `Mamba.prepare` returns them.
_NAMES = ("conv", "conv_bias", "W_x", "W_dt", "dt_bias", "A_log", "D", "W_out")


def uniform(limit: float) -> Initializer:
    """Return an initialiser with uniform numbers between -limit and limit."""

    def draw(shape: tuple[int, ...], rng: numpy.random.Generator) -> NDArray[Any]:
        return rng.uniform(-limit, limit, shape)

    return draw
