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
from returnn_tf.ops.cells.diagonal.time_invariant import time_invariant
from returnn_tf.ops.cells.params import CellParam, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.step_sizes import log_steps
from returnn_tf.ops.cells.time_axis import running_order, zero_padding
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
        """Return the lengths of the states; see `Cell.state_sizes`."""
        return self.pairs * self.n_out, self.pairs * self.n_out

    def param_specs(self) -> list[CellParam]:
        """Declare the parameters; see `Cell.param_specs`."""
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
        """Return the input weights; see `Cell.input_weights`."""
        return (params["W"], params["b"]) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the parts of A' and of 2 B' C [N / 2, n], and D; see `Cell.prepare`."""
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
        """Compute one step; see `Cell.step`."""
        a_re, a_im, c_re, c_im, d = weights
        re, im = (tf.reshape(part, [-1, self.pairs, self.n_out]) for part in state)
        re, im = a_re * re - a_im * im + z[:, None, :], a_re * im + a_im * re
        y = tf.reduce_sum(c_re * re - c_im * im, axis=1) + d * z
        return y, tuple(tf.reshape(part, [-1, self.pairs * self.n_out]) for part in (re, im))

    @property
    def is_parallel(self) -> bool:
        """Return True; see `Cell.is_parallel`."""
        return True

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all frames; see `Cell.all_frames`."""
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
