"""An LSTM over whole sequences as one op of TensorFlow, for converters to formats that have such an op.

TensorFlow itself runs this op on GPUs only, so it is used in graphs that are converted and never run.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Optional

from returnn_tf.ops.cells.base import Cell, Params, State, all_lengths
from returnn_tf.ops.cells.lstm import LstmCell
from returnn_tf.util.lazy_tf import tf

_FUSED: contextvars.ContextVar[bool] = contextvars.ContextVar("fused_lstm_ops", default=False)


@contextlib.contextmanager
def fused_lstm_ops() -> Iterator[None]:
    """Emit LSTMs as single ops ``CudnnRNNV3``, in this thread, while the context is open."""
    token = _FUSED.set(True)
    try:
        yield
    finally:
        _FUSED.reset(token)


def fused_weights(cell: Cell, params: Params, x: tf.Tensor) -> Optional[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Return input weights [in, 4 n], bias [4 n] and recurrent weights [n, 4 n]; gates in the order j, i, f, o.

    :param x: the input
    :return: None if the cell is to run in another form: outside of `fused_lstm_ops`, or as the op can't express it
    """
    if not _FUSED.get() or not isinstance(cell, LstmCell) or not cell.is_plain or x.dtype != tf.float32:
        return None
    weights = cell.input_weights(params)
    if weights is None or weights[1] is None:
        return None
    return weights[0], weights[1], cell.recurrent_weights(params, None)


def fused_lstm(
    x: tf.Tensor,
    weights: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    lengths: Optional[tf.Tensor],
    state: State,
) -> tuple[tf.Tensor, State]:
    """Run an LSTM over all frames.

    :param x: [time, batch, in]
    :param weights: see `fused_weights`
    :param lengths: int [batch], or None if all sequences fill the array
    :param state: c and h [batch, n]
    :return: outputs [time, batch, n], and c and h after the last frame of each sequence
    """
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
