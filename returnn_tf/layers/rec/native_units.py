"""Which units, and products of all frames, run as native ops in place of plain TensorFlow."""

from __future__ import annotations

from typing import Optional, Tuple

from returnn_tf.native import gru_ops, lstm_ops, native_gru, native_lstm
from returnn_tf.native.product import matmul
from returnn_tf.ops.cells import Cell, register_native_kernel
from returnn_tf.ops.cells.base import Params, State
from returnn_tf.ops.cells.gru import Gru
from returnn_tf.ops.cells.kernels import NativeKernel
from returnn_tf.ops.cells.lstm import LstmCell
from returnn_tf.ops.dense.product import register_product
from returnn_tf.util.lazy_tf import tf


def lstm_kernel(cell: Cell, dtype: tf.DType) -> Optional[NativeKernel]:
    """The native LSTM for cells that compute its formula and nothing else, in a type that it has."""
    if not isinstance(cell, LstmCell) or not cell.is_plain or lstm_ops(dtype) is None:
        return None
    return _run_lstm


def gru_kernel(cell: Cell, dtype: tf.DType) -> Optional[NativeKernel]:
    """The native GRU for cells whose candidate has the usual activation, in a type that it has."""
    if not isinstance(cell, Gru) or cell.opts["activation"] != "tanh" or gru_ops(dtype) is None:
        return None
    return _run_gru


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
    c0, h0 = state
    weights = cell.recurrent_weights(params, seed)
    h, c_last, h_last = native_lstm(lstm_ops(z.dtype), z, weights, c0, h0, _lengths(lengths, z), reverse=reverse)
    return h, (c_last, h_last)


def _run_gru(
    cell: Cell,
    params: Params,
    z: tf.Tensor,
    lengths: Optional[tf.Tensor],
    state: State,
    seed: Optional[tf.Tensor],
    reverse: bool,
) -> Tuple[tf.Tensor, State]:
    """See `returnn_tf.ops.cells.kernels.NativeKernel`."""
    w_gates, w_candidate = cell.prepare(params, batch=tf.shape(z)[1], seed=seed)
    (h0,) = state
    h, h_last = native_gru(gru_ops(z.dtype), z, w_gates, w_candidate, h0, _lengths(lengths, z), reverse=reverse)
    return h, (h_last,)


def _lengths(lengths: Optional[tf.Tensor], z: tf.Tensor) -> tf.Tensor:
    """As the ops want them; without any, all sequences have all frames of ``z`` [time, batch, ...]."""
    return tf.fill([tf.shape(z)[1]], tf.shape(z)[0]) if lengths is None else tf.cast(lengths, tf.int32)


for _unit in ("nativelstm2", "nativelstmlowmem", "basiclstm", "standardlstm", "zoneoutlstm"):
    register_native_kernel(_unit, lstm_kernel)
register_native_kernel("gru", gru_kernel)
register_product(matmul)
