"""Which units run as native ops, in place of their loops in plain TensorFlow."""

from __future__ import annotations

from typing import Optional, Tuple

from returnn_tf.native import lstm_ops, native_lstm
from returnn_tf.ops.cells import Cell, register_native_kernel
from returnn_tf.ops.cells.base import Params, State
from returnn_tf.ops.cells.kernels import NativeKernel
from returnn_tf.ops.cells.lstm import LstmCell
from returnn_tf.util.lazy_tf import tf


def lstm_kernel(cell: Cell, dtype: tf.DType) -> Optional[NativeKernel]:
    """The native LSTM for cells that compute its formula and nothing else, in a type that it has."""
    if not isinstance(cell, LstmCell) or not cell.is_plain or lstm_ops(dtype) is None:
        return None
    return _run_lstm


def _run_lstm(
    cell: Cell,
    params: Params,
    z: tf.Tensor,
    lengths: Optional[tf.Tensor],
    state: State,
    seed: Optional[tf.Tensor],
    reverse: bool,
) -> Tuple[tf.Tensor, State]:
    """See `returnn_tf.ops.cells.kernels.NativeKernel`."""
    assert isinstance(cell, LstmCell)
    if lengths is None:
        lengths = tf.fill([tf.shape(z)[1]], tf.shape(z)[0])
    c0, h0 = state
    weights = cell.recurrent_weights(params, seed)
    h, c_last, h_last = native_lstm(lstm_ops(z.dtype), z, weights, c0, h0, tf.cast(lengths, tf.int32), reverse=reverse)
    return h, (c_last, h_last)


for _unit in ("nativelstm2", "nativelstmlowmem", "basiclstm", "standardlstm", "zoneoutlstm"):
    register_native_kernel(_unit, lstm_kernel)
