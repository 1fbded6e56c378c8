"""sLSTM of xLSTM: exponential gates, normalised and stabilised, with block-diagonal recurrent weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import at_least, option
from returnn_tf.native.scans.slstm import native_slstm, slstm_ops
from returnn_tf.ops.cells.base import Cell, CellFrames, Kernel, Params, State
from returnn_tf.ops.cells.params import CellParam, by_head, input_part, whole
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.slstm_loop import TINY, slstm_loop
from returnn_tf.ops.cells.time_axis import state_at
from returnn_tf.tensor.parts import Parts, equal_parts
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
        """Declare the parameters; see `Cell.param_specs`."""
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
        """Return the input weights; see `Cell.input_weights`."""
        return (params["W"], params["b"]) if self.input_projection else None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the recurrent weights."""
        return [params["W_re"]]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute one step; see `Cell.step`."""
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
        return self._run_native if slstm_ops(dtype) is not None else None

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
