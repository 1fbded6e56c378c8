"""LSTM with gates in the order cell input j, input gate i, forget gate f, output gate o: the native units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.options import option
from returnn_tf.native.lstm import lstm_ops, native_lstm
from returnn_tf.ops.cells.base import Cell, CellFrames, Kernel, Params, State, drop_rate, dropout
from returnn_tf.ops.cells.lstm_loop import lstm_loop
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.util.lazy_tf import tf


class LstmCell(Cell):
    """Base of all cells with state (c, h) and gates of the projected input in the order j, i, f, o.

    ``j, i, f, o = split(z_t + h W_re);  c' = sigmoid(f) c + sigmoid(i) tanh(j);  h' = sigmoid(o) tanh(c')``

    Hochreiter & Schmidhuber 1997; with the forget gate of Gers et al. 2000.
    """

    state_keys = ("c", "h")
    gates = 4

    @property
    def is_plain(self) -> bool:
        """Return whether the cell computes exactly the formula above, so that its kernel can run the loop."""
        return True

    def recurrent_weights(self, params: Params, seed: Optional[tf.Tensor]) -> tf.Tensor:
        """Return ``W_re`` [n, 4 n], gates in the order j, i, f, o.

        :param seed: int [2]: training, draw noise from it; None: no noise
        """
        raise NotImplementedError

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Prepare what all steps share; see `Cell.prepare`."""
        return [self.recurrent_weights(params, seed)]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute one step; see `Cell.step`."""
        c, h = state
        j, ifo = tf.split(z + tf.matmul(h, weights[0]), [self.n_out, 3 * self.n_out], axis=-1)
        i, f, o = tf.split(tf.sigmoid(ifo), 3, axis=-1)
        c = f * c + i * tf.tanh(j)
        h = o * tf.tanh(c)
        return h, (c, h)

    def native_kernel(self, dtype: tf.DType) -> Optional[Kernel]:
        """Return the native LSTM."""
        return self._run_native if self.is_plain and lstm_ops(dtype) is not None else None

    def _run_native(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        z, (c0, h0) = frames.z, frames.state
        w_re = self.recurrent_weights(params, frames.seed)
        h, *last = native_lstm(lstm_ops(z.dtype), z, w_re, c0, h0, frames.ends, reverse=frames.reverse)
        return h, tuple(last)

    def loop_kernel(self) -> Optional[Kernel]:
        """Return the loop with its own gradient."""
        return self._run_loop if self.is_plain else None

    def _run_loop(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        c, h = lstm_loop(frames.z, self.recurrent_weights(params, frames.seed), *frames.state)
        return h[1:], (frames.last(c), frames.last(h))


@register_cell(
    "nativelstm2",
    "lstm",
    "lstmp",
    "nativelstm",
    "vanillalstm",
    "lstmblock",
    "lstmblockfused",
    "cudnnlstm",
    "nativelstm2storestates",
)
class NativeLstm(LstmCell):
    """LSTM with separate input weights, recurrent weights and bias; no forget bias is added.

    Weights: ``W`` [in, 4 n], ``W_re`` [n, 4 n], ``b`` [4 n].
    """

    @dataclass
    class Options(LstmCell.Options):
        """The options in ``unit_opts``."""

        rec_weight_dropout: float = option(
            0.0, help="dropout on the recurrent weights, one mask for the whole batch", check=drop_rate
        )
        rec_weight_dropout_shape: Optional[list[int]] = option(
            None, help="shape of that mask, broadcast to [n, 4 n]; default one entry per weight"
        )

    def param_specs(self) -> list[CellParam]:
        """Declare the parameters; see `Cell.param_specs`."""
        n = self.n_out
        recurrent = CellParam("W_re", (n, 4 * n), "recurrent")
        if not self.input_projection:
            return [recurrent]
        return [CellParam("W", (self.in_dim, 4 * n), "forward"), recurrent, CellParam("b", (4 * n,), "bias", 0.0)]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return the input weights; see `Cell.input_weights`."""
        return (params["W"], params["b"]) if self.input_projection else None

    def recurrent_weights(self, params: Params, seed: Optional[tf.Tensor]) -> tf.Tensor:
        """Return the recurrent weights; see `LstmCell.recurrent_weights`."""
        w_re = params["W_re"]
        rate = self.opts.rec_weight_dropout
        if seed is None or not rate:
            return w_re
        return dropout(w_re, rate, seed, self.opts.rec_weight_dropout_shape)


@register_cell("nativelstmlowmem")
class LowMemoryLstm(LstmCell):
    """The same LSTM with input and recurrent weights in one matrix.

    Weights: ``W`` [in + n, 4 n] with the rows of the input first, ``b`` [4 n].
    """

    splits_input_weights = False

    def param_specs(self) -> list[CellParam]:
        """Declare the parameters; see `Cell.param_specs`."""
        n = self.n_out
        return [CellParam("W", (self.in_dim + n, 4 * n), "forward"), CellParam("b", (4 * n,), "bias", 0.0)]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return the input weights; see `Cell.input_weights`."""
        return params["W"][: self.in_dim], params["b"]

    def recurrent_weights(self, params: Params, seed: Optional[tf.Tensor]) -> tf.Tensor:
        """Return the recurrent weights; see `LstmCell.recurrent_weights`."""
        return params["W"][self.in_dim :]
