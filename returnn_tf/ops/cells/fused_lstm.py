"""An LSTM over whole sequences as one op of TensorFlow, in graphs without native ops."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Callable, NamedTuple, Optional

from returnn_tf.ops.cells.base import Cell, Params, State, all_lengths
from returnn_tf.ops.cells.lstm import LstmCell
from returnn_tf.ops.cells.time_axis import state_at
from returnn_tf.util.lazy_tf import tf

Weights = tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]
"""Input weights [in, 4 n], bias [4 n] and recurrent weights [n, 4 n]; gates in the order j, i, f, o."""


class FusedForm(NamedTuple):
    """An op that runs an LSTM over all frames.

    :param run: function of x [time, batch, in], weights, lengths (int [batch], or None if all sequences fill the array)
        and state (c and h [batch, n]), which returns outputs [time, batch, n], and c and h after the last frame of each
        sequence; output frames after the end of a sequence may hold anything
    :param most_weights: in + n times n, from which on a loop is faster; None: the op is better at any size
    """

    run: Callable[[tf.Tensor, Weights, Optional[tf.Tensor], State], tuple[tf.Tensor, State]]
    most_weights: Optional[int] = None


_FORM: contextvars.ContextVar[Optional[FusedForm]] = contextvars.ContextVar("fused_lstm", default=None)


@contextlib.contextmanager
def fused_lstm_ops(form: FusedForm) -> Iterator[None]:
    """Emit LSTMs in this form, in this thread, while the context is open."""
    token = _FORM.set(form)
    try:
        yield
    finally:
        _FORM.reset(token)


def fused_form(
    cell: Cell, params: Params, x: tf.Tensor, seed: Optional[tf.Tensor]
) -> Optional[tuple[FusedForm, Weights]]:
    """Return the form in which a cell is to run, and its weights.

    :param x: the input
    :param seed: see `Cell.prepare`
    :return: None if the cell is to run in another way: outside of `fused_lstm_ops`, or as the op can't express it
    """
    form = _FORM.get()
    if form is None or not isinstance(cell, LstmCell) or not cell.is_plain or x.dtype != tf.float32:
        return None
    if form.most_weights is not None and (cell.in_dim + cell.n_out) * cell.n_out > form.most_weights:
        return None
    weights = cell.input_weights(params)
    if weights is None or weights[1] is None:
        return None
    return form, (weights[0], weights[1], cell.recurrent_weights(params, seed))


def _cudnn_lstm(x: tf.Tensor, weights: Weights, lengths: Optional[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
    """Run an LSTM over all frames; see `FusedForm`."""
    w, bias, w_re = weights
    n, c0, h0 = w_re.shape[0], *state

    def gates(matrix: tf.Tensor) -> list[tf.Tensor]:
        """Return the part of each gate in the op's order i, f, j, o, transposed."""
        j, i, f, o = tf.split(tf.transpose(matrix), 4)
        return [i, f, j, o]

    all_params = tf.raw_ops.CudnnRNNCanonicalToParams(
        num_layers=1, num_units=n, input_size=w.shape[0],
        weights=[*gates(w), *gates(w_re)], biases=[*gates(bias), *([tf.zeros([n], x.dtype)] * 4)], rnn_mode="lstm",
    )  # fmt: skip
    out = tf.raw_ops.CudnnRNNV3(
        input=x, input_h=tf.expand_dims(h0, 0), input_c=tf.expand_dims(c0, 0), params=all_params,
        sequence_lengths=all_lengths(lengths, x), rnn_mode="lstm", is_training=False, time_major=True,
    )  # fmt: skip
    out.output.set_shape([x.shape[0], x.shape[1], n])
    return out.output, (tf.squeeze(out.output_c, 0), tf.squeeze(out.output_h, 0))


#: For converters to formats that have an LSTM. TensorFlow itself runs this op on GPUs only.
CUDNN_LSTM = FusedForm(_cudnn_lstm)


def _block_lstm(x: tf.Tensor, weights: Weights, lengths: Optional[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
    """Run an LSTM over all frames; see `FusedForm`. A sequence goes on after its end, where nothing is read."""
    w, bias, w_re = weights
    n, c0, h0 = w_re.shape[0], *state
    j, i, f, o = tf.split(tf.concat([w, w_re, tf.expand_dims(bias, 0)], axis=0), 4, axis=1)
    in_order, peephole = tf.concat([i, f, j, o], axis=1), tf.zeros([n], x.dtype)
    out = tf.raw_ops.BlockLSTMV2(
        seq_len_max=tf.cast(tf.shape(x)[0], tf.int64), x=x, cs_prev=c0, h_prev=h0, w=in_order[:-1], b=in_order[-1],
        wci=peephole, wcf=peephole, wco=peephole,
    )  # fmt: skip
    ends = tf.fill([tf.shape(x)[1]], tf.shape(x)[0]) if lengths is None else lengths
    c, h = (state_at(tf.concat([[first], after], axis=0), ends) for first, after in ((c0, out.cs), (h0, out.h)))
    return out.h, (c, h)


#: For graphs that TensorFlow runs. The op multiplies the input frame by frame, which takes longer with many units.
BLOCK_LSTM = FusedForm(_block_lstm, most_weights=1 << 16)
