"""LRU: a linear recurrent unit with complex states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import above, at_least, between, option
from returnn_tf.ops.cells.base import Cell, Params, State
from returnn_tf.ops.cells.params import CellParam, input_part, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.time_axis import zero_padding
from returnn_tf.ops.initializers import Initializer
from returnn_tf.ops.sequence.linear_recurrence import recurrence_of_parts
from returnn_tf.util.lazy_tf import tf


@register_cell("lru")
class Lru(Cell):
    """Linear recurrent unit (Orvieto et al. 2023, arXiv 2303.06349), with m complex states.

    ``lambda = exp(-exp(nu_log) + i exp(theta_log));  h' = lambda h + exp(gamma_log) (x B);  y = Re(h' C) + x D``

    The states "re" and "im" [m] are the parts of h. All frames are computed in parallel.

    Weights: ``nu_log`` [m] and ``theta_log`` [m] (lambda between the radii r_min and r_max, evenly by area, with
    phases uniform up to max_phase), ``gamma_log`` [m] (gamma = sqrt(1 - |lambda|^2)), ``B_re`` and ``B_im`` [in, m]
    (normal, variance 1 / (2 in)), ``C_re`` and ``C_im`` [m, n] (normal, variance 1 / m), ``D`` [in, n] (normal,
    variance 1 / in).
    """

    state_keys = ("re", "im")
    splits_input_weights = False

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        d_state: Optional[int] = option(None, help="number of complex states; default n_out", check=at_least(1))
        r_min: float = option(0.0, help="smallest initial |lambda|", check=between(0, 1))
        r_max: float = option(1.0, help="largest initial |lambda|", check=between(0, 1))
        max_phase: float = option(6.28, help="largest initial phase of lambda", check=above(0))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.opts.r_min >= self.opts.r_max:
            raise OptionError("%s: r_min %g is not below r_max %g." % (self.where, self.opts.r_min, self.opts.r_max))

    @property
    def width(self) -> int:
        """Return the number of complex states, m."""
        return int(self.opts.d_state or self.n_out)

    @property
    def projected_dim(self) -> int:
        """Return the width of gamma x B, in two parts, and x D."""
        return 2 * self.width + self.n_out

    @property
    def output_state(self) -> None:
        """Return None: no state is the output."""
        return None

    def state_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the real and of the imaginary part."""
        return self.width, self.width

    def param_specs(self) -> list[CellParam]:
        """Declare lambda and gamma by their logarithms, the real and imaginary parts of B and C, and D."""
        m, n, dim = self.width, self.n_out, self.in_dim
        radii, inputs, states = self._initial_radii(), input_part(dim), whole(m)
        return [
            CellParam("nu_log", (m,), "fixed", np.log(-np.log(radii)), (states,)),
            CellParam("theta_log", (m,), "fixed", _log_uniform(self.opts.max_phase), (states,)),
            CellParam("gamma_log", (m,), "fixed", 0.5 * np.log1p(-(radii**2)), (states,)),
            CellParam("B_re", (dim, m), "forward", _normal(2 * dim), (inputs, states)),
            CellParam("B_im", (dim, m), "forward", _normal(2 * dim), (inputs, states)),
            CellParam("C_re", (m, n), "forward", _normal(m), (states, whole(n))),
            CellParam("C_im", (m, n), "forward", _normal(m), (states, whole(n))),
            CellParam("D", (dim, n), "forward", _normal(dim)),
        ]

    def _initial_radii(self) -> NDArray[Any]:
        """Return radii such that each ring between neighbours has the same area: gamma depends on the same ones."""
        low, high = self.opts.r_min**2, self.opts.r_max**2
        radii: NDArray[Any] = np.sqrt(low + (high - low) * (np.arange(self.width) + 0.5) / self.width)
        return radii

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return B, scaled by gamma, and D side by side; there is no bias."""
        gamma = tf.exp(params["gamma_log"])
        return tf.concat([params["B_re"] * gamma, params["B_im"] * gamma, params["D"]], axis=1), None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the parts of lambda and of C."""
        radius, phase = tf.exp(-tf.exp(params["nu_log"])), tf.exp(params["theta_log"])
        return [radius * tf.cos(phase), radius * tf.sin(phase), params["C_re"], params["C_im"]]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Multiply the state by lambda, and read it by C."""
        a_re, a_im, c_re, c_im = weights
        b_re, b_im, skip = self._split(z)
        re = a_re * state[0] - a_im * state[1] + b_re
        im = a_re * state[1] + a_im * state[0] + b_im
        return tf.matmul(re, c_re) - tf.matmul(im, c_im) + skip, (re, im)

    def _split(self, z: tf.Tensor) -> list[tf.Tensor]:
        parts: list[tf.Tensor] = tf.split(z, [self.width, self.width, self.n_out], axis=-1)
        return parts

    @property
    def is_parallel(self) -> bool:
        """Return True: the recurrence is linear."""
        return True

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all frames by a parallel scan of the linear recurrence."""
        a_re, a_im, c_re, c_im = weights
        b_re, b_im, skip = self._split(z)
        (re, im), last = recurrence_of_parts((a_re, a_im), (b_re, b_im), state, lengths, reverse)
        y = self.project(re, c_re) - self.project(im, c_im) + skip
        return y if lengths is None else zero_padding(y, lengths), last


def _normal(inverse_variance: int) -> str:
    return "random_normal(0.0, %r)" % float(inverse_variance**-0.5)


def _log_uniform(limit: float) -> Initializer:
    """Return an initialiser with the logarithms of numbers uniform between 0 and ``limit``."""

    def draw(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
        logs: NDArray[Any] = np.log(rng.uniform(np.finfo("float32").tiny, limit, shape))
        return logs

    return draw
