"""Recurrent cells as pure functions: parameters, input projection, one step, and the run over whole sequences."""

# These imports register the units.
from returnn_tf.ops.cells import basic_rnn, gru, layer_norm_lstm, lstm, rhn, standard_lstm, zoneout
from returnn_tf.ops.cells.base import Cell, ParamSpec
from returnn_tf.ops.cells.kernels import kernel_for, register_kernel, register_native_kernel
from returnn_tf.ops.cells.registry import register_unit, unit_class, unit_names
from returnn_tf.ops.cells.run import run_cell

__all__ = [
    "Cell",
    "ParamSpec",
    "basic_rnn",
    "gru",
    "kernel_for",
    "layer_norm_lstm",
    "lstm",
    "register_kernel",
    "register_native_kernel",
    "register_unit",
    "rhn",
    "run_cell",
    "standard_lstm",
    "unit_class",
    "unit_names",
    "zoneout",
]
