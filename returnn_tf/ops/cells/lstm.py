"""LSTM with gates in the order cell input j, input gate i, forget gate f, output gate o: the native units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional

from returnn_tf.config.options import option
from returnn_tf.native.lstm import lstm_ops, native_lstm
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, in_type, ragged
from returnn_tf.ops.cells.base import Cell, CellFrames, Kernel, Params, State, drop_rate, dropout
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import register_cell
from returnn_tf.ops.cells.time_axis import zero_padding
from returnn_tf.ops.rounded import times
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


class LstmCell(Cell):
    """Base of all cells with state (c, h) and gates of the projected input in the order j, i, f, o.

    ``j, i, f, o = split(z_t + h W_re);  c' = sigmoid(f) c + sigmoid(i) tanh(j);  h' = sigmoid(o) tanh(c')``

    Hochreiter & Schmidhuber 1997; with the forget gate of Gers et al. 2000.
    """

    state_keys = ("c", "h")
    gates = 4
    multiplies_rounded = True

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
        """Return the recurrent weights, in training with their dropout."""
        return [self.recurrent_weights(params, seed)]

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute cell and output by the formula of the class."""
        c, h = state
        j, ifo = tf.split(z + times(h, weights[0]), [self.n_out, 3 * self.n_out], axis=-1)
        i, f, o = tf.split(tf.sigmoid(ifo), 3, axis=-1)
        c = f * c + i * tf.tanh(j)
        h = o * tf.tanh(c)
        return h, (c, h)

    def native_kernel(self, dtype: tf.DType) -> Optional[Kernel]:
        """Return the native LSTM."""
        is_there = self.is_plain and lstm_ops(dtype) is not None
        return self._run_native if is_there and pays(LSTM_TRIAL, self.n_out, dtype) else None

    def _run_native(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        z, (c0, h0) = frames.z, frames.state
        w_re = self.recurrent_weights(params, frames.seed)
        options = {"reverse": frames.reverse, "rounded": frames.rounds("lstm", self.product_dtype)}
        h, *last = native_lstm(lstm_ops(z.dtype), z, w_re, c0, h0, frames.ends, **options)
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
    """LSTM with separate input weights, recurrent weights and bias; no forget bias is added by default.

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
        forget_bias: float = option(0.0, help="added to the bias of the forget gate")

    def param_specs(self) -> list[CellParam]:
        """Declare ``W_re``, and ``W`` and ``b`` unless the input is already projected."""
        n = self.n_out
        recurrent = CellParam("W_re", (n, 4 * n), "recurrent")
        if not self.input_projection:
            return [recurrent]
        return [CellParam("W", (self.in_dim, 4 * n), "forward"), recurrent, CellParam("b", (4 * n,), "bias", 0.0)]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return ``W`` and ``b``; None if the input is already projected."""
        return (params["W"], self._with_forget_bias(params["b"])) if self.input_projection else None

    def project_input(self, params: Params, x: tf.Tensor) -> tf.Tensor:
        """Compute ``x W + b``; of an input that is already projected, add ``forget_bias``."""
        return super().project_input(params, x) if self.input_projection else self._with_forget_bias(x)

    def _with_forget_bias(self, z: tf.Tensor) -> tf.Tensor:
        """Add ``forget_bias`` to the forget gate among the gates j, i, f, o in the last axis."""
        if not self.opts.forget_bias:
            return z
        shift = tf.repeat([0.0, 0.0, self.opts.forget_bias, 0.0], self.n_out)
        return z + tf.cast(shift, z.dtype)

    def recurrent_weights(self, params: Params, seed: Optional[tf.Tensor]) -> tf.Tensor:
        """Return ``W_re``, in training with ``rec_weight_dropout``."""
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
        """Declare one matrix for input and state, and the bias."""
        n = self.n_out
        return [CellParam("W", (self.in_dim + n, 4 * n), "forward"), CellParam("b", (4 * n,), "bias", 0.0)]

    def input_weights(self, params: Params) -> Optional[tuple[tf.Tensor, Optional[tf.Tensor]]]:
        """Return the rows of the matrix for the input, and the bias."""
        return params["W/input"], params["b"]

    def recurrent_weights(self, params: Params, seed: Optional[tf.Tensor]) -> tf.Tensor:
        """Return the rows of the matrix for the state."""
        return params["W/state"]


def lstm_loop(z: tf.Tensor, w_re: tf.Tensor, c0: tf.Tensor, h0: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Run the formula of `LstmCell` over all frames, with a hand-written gradient.

    The automatic gradient of a `tf.while_loop` adds up the gradient of the recurrent weights in every frame and stores
    every intermediate result. Here the forward loop stores the gates, the backward loop only computes the gradient of
    the pre-activations, and the gradient of the weights is a single matrix product after it: a training step takes 15
    to 35 % less time on CPU (``bench/step_overhead.py --kernels``).

    There is no mask: frames after the end of a sequence are computed like all others, and the caller must not use them
    (then no gradient comes from there either).

    :param z: projected input, with bias [time, batch, 4 n]
    :param w_re: recurrent weights [n, 4 n]
    :param c0: initial cell state [batch, n]
    :param h0: initial output [batch, n]
    :return: c and h [time + 1, batch, n], where entry 0 is the initial state
    """
    n = w_re.shape[0]

    @custom_gradient
    def loop(z: tf.Tensor, w_re: tf.Tensor, c0: tf.Tensor, h0: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        c_array, h_array, j_array, ifo_array = _forward(z, w_re, c0, h0, n)
        c_all, h_all = c_array.stack(), h_array.stack()

        def gradient(dc_all: tf.Tensor, dh_all: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dz, dc0, dh0 = _backward(c_array, j_array, ifo_array, w_re, dc_all, dh_all, n)
            h_before = tf.reshape(h_all[:-1], [-1, n])
            dw_re = tf.matmul(h_before, tf.reshape(dz, [-1, 4 * n]), transpose_a=True)
            return dz, dw_re, dc0, dh0

        return (c_all, h_all), gradient

    c_all, h_all = loop(z, w_re, c0, h0)
    c_all.set_shape([None, z.shape[1], n])
    h_all.set_shape([None, z.shape[1], n])
    return c_all, h_all


def _array(dtype: tf.DType, size: tf.Tensor, width: int) -> tf.TensorArray:
    return tf.TensorArray(dtype, size, element_shape=[None, width], clear_after_read=False)


def _forward(z: tf.Tensor, w_re: tf.Tensor, c0: tf.Tensor, h0: tf.Tensor, n: int) -> tuple[tf.TensorArray, ...]:
    n_frames = tf.shape(z)[0]
    inputs = _array(z.dtype, n_frames, 4 * n).unstack(z)

    def step(t, c, h, c_array, h_array, j_array, ifo_array):  # type: ignore[no-untyped-def]
        j, ifo = tf.split(inputs.read(t) + tf.matmul(h, w_re), [n, 3 * n], axis=1)
        j, ifo = tf.tanh(j), tf.sigmoid(ifo)
        i, f, o = tf.split(ifo, 3, axis=1)
        c = f * c + i * j
        h = o * tf.tanh(c)
        arrays = c_array.write(t + 1, c), h_array.write(t + 1, h), j_array.write(t, j), ifo_array.write(t, ifo)
        return (t + 1, c, h) + arrays

    arrays = (
        _array(z.dtype, n_frames + 1, n).write(0, c0),
        _array(z.dtype, n_frames + 1, n).write(0, h0),
        _array(z.dtype, n_frames, n),
        _array(z.dtype, n_frames, 3 * n),
    )
    _, _, _, *results = tf.while_loop(lambda t, *_: t < n_frames, step, (0, c0, h0) + arrays, parallel_iterations=1)
    return tuple(results)


def _backward(  # type: ignore[no-untyped-def]
    c_array, j_array, ifo_array, w_re: tf.Tensor, dc_all: tf.Tensor, dh_all: tf.Tensor, n: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute gradients of z [time, batch, 4 n], c0 and h0 [batch, n] from those of all states [time + 1, batch, n]."""
    dtype = w_re.dtype
    n_frames = tf.shape(dh_all)[0] - 1
    dc_array = _array(dtype, n_frames + 1, n).unstack(dc_all)
    dh_array = _array(dtype, n_frames + 1, n).unstack(dh_all)
    w_re_transposed = tf.transpose(w_re)

    def step(t, c, dc, dh, dz_array):  # type: ignore[no-untyped-def]
        """Step back over frame ``t``; ``c, dc, dh`` belong to the state after it."""
        j, ifo, c_before = j_array.read(t), ifo_array.read(t), c_array.read(t)
        i, f, o = tf.split(ifo, 3, axis=1)
        tanh_c = tf.tanh(c)
        dc = dc + tf.raw_ops.TanhGrad(y=tanh_c, dy=dh * o)
        dj = tf.raw_ops.TanhGrad(y=j, dy=dc * i)
        difo = tf.raw_ops.SigmoidGrad(y=ifo, dy=tf.concat([dc * j, dc * c_before, dh * tanh_c], axis=1))
        dz = tf.concat([dj, difo], axis=1)
        dc_before = dc_array.read(t) + dc * f
        dh_before = dh_array.read(t) + tf.matmul(dz, w_re_transposed)
        # Entry 0 stays empty, such that the array can be stacked without any frame.
        return t - 1, c_before, dc_before, dh_before, dz_array.write(t + 1, dz)

    c, dc, dh = c_array.read(n_frames), dc_array.read(n_frames), dh_array.read(n_frames)
    dz_array = _array(dtype, n_frames + 1, 4 * n).write(0, tf.zeros([tf.shape(c)[0], 4 * n], dtype))
    init = (n_frames - 1, c, dc, dh, dz_array)
    _, _, dc0, dh0, dz_array = tf.while_loop(lambda t, *_: t >= 0, step, init, parallel_iterations=1)
    dz = dz_array.stack()[1:]
    dz.set_shape([None, None, 4 * n])
    return dz, dc0, dh0


def _case(size: Size) -> Case:
    n, state = size.width, (size.batch, size.width)
    inputs = draw((0.5, (size.frames, size.batch, 4 * n)), (n**-0.5, (n, 4 * n)), (0.5, state), (0.5, state))
    lengths = ragged(size)

    def plain(z: tf.Tensor, w_re: tf.Tensor, c0: tf.Tensor, h0: tf.Tensor) -> list[tf.Tensor]:
        c, h = lstm_loop(z, w_re, c0, h0)
        frames = CellFrames(z, tf.constant(lengths), (c0, h0))
        return [zero_padding(h[1:], lengths), frames.last(c), frames.last(h)]

    return Case(inputs, in_type(partial(native_lstm, lengths=lengths), size.dtype), plain)


LSTM_TRIAL = Trial("lstm", "lstm", __name__, "LSTM_TRIAL", _case, "units", dtypes=("float32", "bfloat16", "float16"))
