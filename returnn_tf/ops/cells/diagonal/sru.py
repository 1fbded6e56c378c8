"""Simple recurrent units: a light recurrence, whose gates see the cell elementwise or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.config.options import option
from returnn_tf.ops.cells.base import Cell, CellFrames, Kernel, Params, State
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.time_axis import zero_padding
from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


@register_cell("sru")
class Sru(Cell):
    """SRU (Lei et al. 2018, arXiv 1709.02755), with the state c.

    ``f = sigmoid(x W_f + v_f c + b_f);  c' = f c + (1 - f) x W_c``
    ``r = sigmoid(x W_r + v_r c + b_r);  h = r c' + (1 - r) a x``

    All products with ``v`` are elementwise. x in the last term is ``x W_x`` where the input is not of dim n, or sparse.
    The factor a is 1; with the option ``rescale`` it is ``sqrt(1 + 2 exp(highway_bias))``, as in the paper.

    Over time, only the formulas of f and c' run frame by frame, and their gradient is computed in parallel. Without
    ``recurrent_vectors`` f does not depend on c, and everything is computed in parallel.

    Weights: ``W`` [in, 3 n] with the columns c, f, r, or [in, 4 n] with W_x at the end; ``b`` [2 n] of f and r;
    ``v_f``, ``v_r`` [n]. Initial values: W uniform with variance 1 / in, v_f and v_r uniform with variance 1/2, b_f 0.
    """

    state_keys = ("c",)
    gates = 4

    @dataclass
    class Options(Cell.Options):
        """The options in ``unit_opts``."""

        recurrent_vectors: bool = option(True, help="the gates see the cell, by v_f and v_r; False: in parallel")
        highway_bias: float = option(0.0, help="initial bias of r; negative values favour the input")
        rescale: bool = option(False, help="scale the input in the output, so that its variance is kept at the start")

    @property
    def output_state(self) -> Optional[int]:
        """Return None: the cell is not the output."""
        return None

    @property
    def _copies_input(self) -> bool:
        return self.in_dim == self.n_out and not self.sparse_input and self.input_projection

    def param_specs(self) -> list[CellParam]:
        """Declare ``W`` and ``b``, and the recurrent vectors if the options ask for them."""
        n, specs = self.n_out, []
        if self.input_projection:
            bias = np.repeat([0.0, self.opts.highway_bias], n)
            columns = 3 * n if self._copies_input else 4 * n
            specs.append(CellParam("W", (self.in_dim, columns), "forward", "lecun_uniform"))
            specs.append(CellParam("b", (2 * n,), "bias", bias))
        if self.opts.recurrent_vectors:
            limit = math.sqrt(1.5)
            drawn = "random_uniform_initializer(minval=%r, maxval=%r)" % (-limit, limit)
            specs += [CellParam(name, (n,), "recurrent", drawn) for name in ("v_f", "v_r")]
        return specs

    def project_input(self, params: Params, x: tf.Tensor) -> tf.Tensor:
        """Return c, f, r and the input of the output [..., 4 n]."""
        if not self._copies_input:
            return super().project_input(params, x)
        return tf.concat([self.project(x, params["W"], self._bias(params, 1)), x], axis=-1)

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``W`` and the bias; None if the input is already projected, or part of the result."""
        if self._copies_input or not self.input_projection:
            return None
        return params["W"], self._bias(params, 2)

    def _bias(self, params: Params, parts: int) -> tf.Tensor:
        """Return the bias of all columns of W: c (and x if ``parts`` is 2) have none."""
        zeros = tf.zeros([self.n_out], params["b"].dtype)
        return tf.concat([zeros, params["b"], zeros][: parts + 1], axis=0)

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return v_f and v_r."""
        return [params["v_f"], params["v_r"]] if self.opts.recurrent_vectors else []

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Update the cell by the gate f, and mix it with the input."""
        (c,) = state
        x, f, _, _ = tf.split(z, 4, axis=-1)
        f = tf.sigmoid(f + weights[0] * c if weights else f)
        after = x + f * (c - x)
        return self._output(weights, z, c, after), (after,)

    def _output(self, weights: Sequence[tf.Tensor], z: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        """Return h [..., n] of a frame or of many from the cell before and after it."""
        _, _, r, x = tf.split(z, 4, axis=-1)
        r = tf.sigmoid(r + weights[1] * before if weights else r)
        scale = math.sqrt(1 + 2 * math.exp(self.opts.highway_bias)) if self.opts.rescale else 1
        x = x * scale
        return x + r * (after - x)

    @property
    def is_parallel(self) -> bool:
        """Return whether no gate depends on the cell of the frame before."""
        return not self.opts.recurrent_vectors

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute the cells by a linear recurrence, and the outputs of all frames at once."""
        x, f, _, _ = tf.split(z, 4, axis=-1)
        c, last = linear_recurrence(tf.sigmoid(f), tf.sigmoid(-f) * x, state[0], lengths, reverse)
        h = self._output(weights, z, c, c)
        return h if lengths is None else zero_padding(h, lengths), (last,)

    def loop_kernel(self) -> Optional[Kernel]:
        """Return the loop over f and c'."""
        return self._run_loop if self.opts.recurrent_vectors else None

    def _run_loop(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        """Run the cells frame by frame, then all outputs at once."""
        weights = self.prepare(params, batch=frames.batch, seed=frames.seed)
        x, f, _, _ = tf.split(frames.z, 4, axis=-1)
        c = sru_loop(x, f, weights[0], frames.state[0])
        return self._output(weights, frames.z, c[:-1], c[1:]), (frames.last(c),)


def sru_loop(x: tf.Tensor, z: tf.Tensor, v: tf.Tensor, c0: tf.Tensor) -> tf.Tensor:
    """Compute ``f = sigmoid(z_t + v c);  c = f c + (1 - f) x_t`` over all frames, with a gradient in parallel.

    Each cell depends on the one before elementwise, so the gradient of all cells is a linear recurrence, with the
    factors ``dc[t+1] / dc[t]``. The forward loop keeps the cells only.

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
